#include "api/media_fields.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "api/content_blocks.h"
#include "api/unserved_fields.h"
#include "media/data_url.h"

namespace millrace::api {
namespace {

// Of input_audio. The bytes decide what an audio is; a format that no decoder knows is refused by its name.
constexpr std::string_view kAudioFormats[] = {"wav", "mp3", "flac", "ogg", "opus"};

struct MediaType {
  MediaDialect dialect;
  std::string_view name;
  MediaForm form;
};

constexpr MediaType kTypes[] = {{MediaDialect::kChat, "image_url", MediaForm::kPicture},
                                {MediaDialect::kChat, "video_url", MediaForm::kVideo},
                                {MediaDialect::kChat, "input_audio", MediaForm::kAudio},
                                {MediaDialect::kChat, "audio_url", MediaForm::kAudio},
                                {MediaDialect::kMessages, "image", MediaForm::kPicture},
                                {MediaDialect::kResponses, "input_image", MediaForm::kPicture},
                                {MediaDialect::kResponses, "input_audio", MediaForm::kAudio}};

bool is_taken(const MediaType& type, MediaDialect dialect, const MediaFacts& facts) {
  if (type.dialect != dialect) return false;
  if (type.form == MediaForm::kVideo) return facts.videos.has_value();
  return type.form == MediaForm::kAudio ? facts.audio.has_value() : facts.pictures.has_value();
}

// Members of a part, or of the object with its URL, that would change how it is read: of SGLang and Qwen's own API.
constexpr const char* kPartLimits[] = {"min_pixels",   "max_pixels", "resized_height", "resized_width",
                                       "total_pixels", "fps",        "nframes",        "num_frames",
                                       "min_frames",   "max_frames", "video_start",    "video_end"};

Status refuse_limits(const Json& object, const std::string& where) {
  RETURN_IF_ERROR(refuse_unserved_media(object).with_prefix(where));
  for (const char* key : kPartLimits) {
    RETURN_IF_ERROR(refuse_unless(object, key, nullptr).with_prefix(where));
  }
  return ok_status();
}

Status read_detail(const Json& object, const std::string& where, bool& low) {
  std::string detail = "auto";
  RETURN_IF_ERROR(json_read(object, "detail", detail).with_prefix(where));
  if (detail != "auto" && detail != "low" && detail != "high") {
    return invalid_argument("{}.detail is '{}'; wanted auto, low or high", where, detail.substr(0, kShownBytes));
  }
  low = detail == "low";
  return ok_status();
}

Status read_text(const Json& object, const char* key, const std::string& where, std::string_view wanted,
                 MediaField& out) {
  out.name = fmt::format("{}.{}", where, key);
  const Json* text = json_find(object, key);
  if (text == nullptr || !text->is_string()) return invalid_argument("{} is no string; wanted {}", out.name, wanted);
  out.text = text->get_ref<const std::string&>();
  return ok_status();
}

// OpenAI's {"url": ..., "detail": ...}, or the URL alone.
Status read_url(const Json& part, const std::string& key, const std::string& where, MediaField& out) {
  out.name = fmt::format("{}.{}", where, key);
  RETURN_IF_ERROR(refuse_limits(part, where));
  const Json* value = json_find(part, key);
  if (value == nullptr) return invalid_argument("{} is missing; wanted an object with a url", out.name);
  if (value->is_object()) {
    const std::string name = out.name;
    RETURN_IF_ERROR(refuse_limits(*value, name));
    RETURN_IF_ERROR(read_text(*value, "url", name, "a data: URL", out));
    return read_detail(*value, name, out.low_detail);
  }
  if (!value->is_string()) return wrong_type(out.name, *value, "an object with a url");
  out.text = value->get_ref<const std::string&>();
  out.name += ".url";
  return ok_status();
}

Status read_input_audio(const Json& part, const std::string& where, MediaField& out) {
  const std::string name = where + ".input_audio";
  const Json* value = json_find(part, "input_audio");
  if (value == nullptr) return invalid_argument("{} is missing; wanted an object with data and format", name);
  if (!value->is_object()) return wrong_type(name, *value, "an object with data and format");
  RETURN_IF_ERROR(read_text(*value, "data", name, "base64", out));
  std::string format;
  RETURN_IF_ERROR(json_read(*value, "format", format).with_prefix(name));
  if (!format.empty() && std::ranges::find(kAudioFormats, format) == std::end(kAudioFormats)) {
    return invalid_argument("{}.format is '{}'; wanted wav, mp3, flac, ogg or opus", name,
                            format.substr(0, kShownBytes));
  }
  out.is_url = is_data_url(out.text);  // some clients put one there
  return ok_status();
}

// Anthropic's block: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ...}}. Of the
// media type there is nothing to do: what a picture is, its bytes decide.
Status read_image_block(const Json& block, const std::string& where, MediaField& out) {
  static const Json kNone = Json::object();
  RETURN_IF_ERROR(refuse_unless(block, "transformations", kNone).with_prefix(where));
  const std::string name = where + ".source";
  const Json* source = json_find(block, "source");
  if (source == nullptr)
    return invalid_argument("{} is missing; wanted an object with type, media_type and data", name);
  ASSIGN_OR_RETURN(const std::string type, read_block_type(*source, name));
  if (type == "url") return read_text(*source, "url", name, "a data: URL", out);
  if (type != "base64") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted base64 or url: files are not stored here", name,
                 type.substr(0, kShownBytes));
  }
  std::string media_type;
  RETURN_IF_ERROR(json_read(*source, "media_type", media_type).with_prefix(name));
  out.is_url = false;
  return read_text(*source, "data", name, "base64", out);
}

// OpenAI's part: {"type": "input_image", "image_url": "data:...", "detail": "auto"}.
Status read_input_image(const Json& part, const std::string& where, MediaField& out) {
  RETURN_IF_ERROR(refuse_limits(part, where));
  if (json_find(part, "file_id") != nullptr) {
    return error(StatusCode::kUnsupported, "{}.file_id is not supported: files are not stored here; wanted image_url",
                 where);
  }
  RETURN_IF_ERROR(read_text(part, "image_url", where, "a data: URL", out));
  return read_detail(part, where, out.low_detail);
}

}  // namespace

bool is_media_type(MediaDialect dialect, const MediaFacts& facts, std::string_view type) {
  return std::ranges::any_of(kTypes,
                             [&](const MediaType& one) { return one.name == type && is_taken(one, dialect, facts); });
}

std::string wanted_types(MediaDialect dialect, const MediaFacts& facts, std::vector<std::string_view> others) {
  for (const MediaType& type : kTypes) {
    if (is_taken(type, dialect, facts)) others.push_back(type.name);
  }
  std::string out;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (i > 0) out += i + 1 == others.size() ? " or " : ", ";
    out += others[i];
  }
  return facts.any() ? out : out + ": this model takes text only";
}

Result<MediaField> read_media_field(MediaDialect dialect, const Json& part, const std::string& type,
                                    const std::string& where) {
  MediaField out;
  for (const MediaType& known : kTypes) {
    if (known.dialect == dialect && known.name == type) out.form = known.form;
  }
  Status status = ok_status();
  if (type == "input_audio") {
    status = read_input_audio(part, where, out);
  } else if (dialect == MediaDialect::kMessages) {
    status = read_image_block(part, where, out);
  } else if (dialect == MediaDialect::kResponses) {
    status = read_input_image(part, where, out);
  } else {
    status = read_url(part, type, where, out);
  }
  RETURN_IF_ERROR(status);
  return out;
}

}  // namespace millrace::api
