#include "api/media_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/unserved_fields.h"
#include "media/data_url.h"
#include "stages/media/prompt_media.h"

namespace millrace::api {
namespace {

constexpr std::size_t kShownBytes = 64;
// Of input_audio. The bytes decide what an audio is; a format that no decoder knows is refused by its name.
constexpr std::string_view kAudioFormats[] = {"wav", "mp3", "flac", "ogg", "opus"};

// Members of a part, or of the object with its URL, that would change how it is read: of SGLang and Qwen's own API.
Status refuse_limits(const Json& object, const std::string& where) {
  RETURN_IF_ERROR(refuse_unserved_media(object).with_prefix(where));
  for (const char* key : {"min_pixels", "max_pixels", "resized_height", "resized_width"}) {
    RETURN_IF_ERROR(refuse_unless(object, key, nullptr).with_prefix(where));
  }
  return ok_status();
}

struct UrlPart {
  std::string url;
  std::string detail = "auto";
};

// OpenAI's {"url": ..., "detail": ...}, or the URL alone.
Result<UrlPart> read_url(const Json& part, const std::string& key, const std::string& where) {
  const std::string name = fmt::format("{}.{}", where, key);
  UrlPart out;
  RETURN_IF_ERROR(refuse_limits(part, where));
  const Json* value = json_find(part, key);
  if (value == nullptr) return invalid_argument("{} is missing; wanted an object with a url", name);
  if (value->is_string()) {
    out.url = value->get_ref<const std::string&>();
  } else if (value->is_object()) {
    RETURN_IF_ERROR(refuse_limits(*value, name));
    const Json* text = json_find(*value, "url");
    if (text == nullptr || !text->is_string()) return invalid_argument("{}.url is no string; wanted a data: URL", name);
    out.url = text->get_ref<const std::string&>();
    RETURN_IF_ERROR(json_read(*value, "detail", out.detail).with_prefix(name));
  } else {
    return invalid_argument("{} is of type {}; wanted an object with a url", name, json_type_name(*value));
  }
  return out;
}

Result<std::string> read_data(const std::string& url, const std::string& name) {
  if (!is_data_url(url)) {
    return error(StatusCode::kUnsupported, "{} begins with '{}'; wanted a data: URL: no others are read", name,
                 url.substr(0, 8));
  }
  const auto data = read_data_url(url, wire::kMaxMediaBytes);
  if (!data.ok()) return data.status().with_prefix(name);
  return std::string(data->bytes.begin(), data->bytes.end());
}

}  // namespace

std::string MediaParts::wanted_types() const {
  std::string out = "'text'";
  if (facts_.pictures) out += facts_.audio ? ", 'image_url'" : " or 'image_url'";
  if (facts_.audio) out += ", 'input_audio' or 'audio_url'";
  return out;
}

Status MediaParts::take(Json& part, const std::string& type, const std::string& where) {
  if (!takes_any()) {
    return invalid_argument("{}.type is '{}'; wanted 'text': this model takes text only", where,
                            type.substr(0, kShownBytes));
  }
  if (facts_.pictures && type == "image_url") {
    RETURN_IF_ERROR(take_picture(part, where));
    part = {{"type", "image"}};
    return ok_status();
  }
  if (facts_.audio && (type == "input_audio" || type == "audio_url")) {
    RETURN_IF_ERROR(type == "audio_url" ? take_audio_url(part, where) : take_input_audio(part, where));
    part = {{"type", "audio"}};
    return ok_status();
  }
  return invalid_argument("{}.type is '{}'; wanted {}", where, type.substr(0, kShownBytes), wanted_types());
}

Status MediaParts::take_picture(const Json& part, const std::string& where) {
  ASSIGN_OR_RETURN(const UrlPart given, read_url(part, "image_url", where));
  if (given.detail != "auto" && given.detail != "low" && given.detail != "high") {
    return invalid_argument("{}.image_url.detail is '{}'; wanted auto, low or high", where,
                            given.detail.substr(0, kShownBytes));
  }
  ASSIGN_OR_RETURN(std::string bytes, read_data(given.url, where + ".image_url.url"));
  return add(read_picture(std::move(bytes), given.detail == "low", *facts_.pictures), where);
}

Status MediaParts::take_input_audio(const Json& part, const std::string& where) {
  const std::string name = where + ".input_audio";
  const Json* value = json_find(part, "input_audio");
  if (value == nullptr || !value->is_object()) {
    return invalid_argument("{} is {}; wanted an object with data and format", name,
                            value == nullptr ? "missing" : fmt::format("of type {}", json_type_name(*value)));
  }
  const Json* data = json_find(*value, "data");
  if (data == nullptr || !data->is_string()) return invalid_argument("{}.data is no string; wanted base64", name);
  std::string format;
  RETURN_IF_ERROR(json_read(*value, "format", format).with_prefix(name));
  if (!format.empty() && std::ranges::find(kAudioFormats, format) == std::end(kAudioFormats)) {
    return invalid_argument("{}.format is '{}'; wanted wav, mp3, flac, ogg or opus", name,
                            format.substr(0, kShownBytes));
  }
  const auto& text = data->get_ref<const std::string&>();
  if (is_data_url(text)) {  // some clients put one here
    ASSIGN_OR_RETURN(std::string bytes, read_data(text, name + ".data"));
    return add_audio(std::move(bytes), where);
  }
  const auto bytes = decode_base64(text, wire::kMaxMediaBytes);
  if (!bytes.ok()) return bytes.status().with_prefix(name + ".data");
  return add_audio({bytes->begin(), bytes->end()}, where);
}

Status MediaParts::take_audio_url(const Json& part, const std::string& where) {
  ASSIGN_OR_RETURN(const UrlPart given, read_url(part, "audio_url", where));
  ASSIGN_OR_RETURN(std::string bytes, read_data(given.url, where + ".audio_url.url"));
  return add_audio(std::move(bytes), where);
}

Status MediaParts::add_audio(std::string bytes, const std::string& where) {
  if (!facts_.audio) return error(StatusCode::kUnsupported, "{} is an audio, and this model takes none", where);
  return add(read_audio(std::move(bytes), *facts_.audio), where);
}

Status MediaParts::add(Result<wire::PromptMedia> media, const std::string& where) {
  if (!media.ok()) return media.status().with_prefix(where);
  if (media_.size() >= wire::kMaxPromptMedia) {
    return invalid_argument("{} is one more than {} pictures and audios; wanted at most so many", where,
                            wire::kMaxPromptMedia);
  }
  bytes_ += media->bytes.bytes.size();
  if (bytes_ > wire::kMaxPromptMediaBytes) {
    return error(StatusCode::kTooLarge,
                 "the pictures and audios up to {} have {} bytes; wanted at most {} in one request", where, bytes_,
                 wire::kMaxPromptMediaBytes);
  }
  media->field = where;
  media_.push_back(std::move(*media));
  return ok_status();
}

PromptMediaList MediaParts::list() && {
  if (media_.empty()) return nullptr;
  return std::make_shared<const std::vector<wire::PromptMedia>>(std::move(media_));
}

}  // namespace millrace::api
