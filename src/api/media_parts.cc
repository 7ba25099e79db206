#include "api/media_parts.h"

#include <nlohmann/json.hpp>

#include "api/content_blocks.h"
#include "media/data_url.h"
#include "stages/media/media_rows.h"

namespace millrace::api {

Result<std::optional<std::string>> MediaParts::read_bytes(const MediaField& field) {
  if (!field.is_url) {
    const auto bytes = decode_base64(field.text, wire::kMaxMediaBytes);
    if (!bytes.ok()) return bytes.status().with_prefix(field.name);
    return std::optional<std::string>(std::in_place, bytes->begin(), bytes->end());
  }
  if (is_data_url(field.text)) {
    const auto data = read_data_url(field.text, wire::kMaxMediaBytes);
    if (!data.ok()) return data.status().with_prefix(field.name);
    return std::optional<std::string>(std::in_place, data->bytes.begin(), data->bytes.end());
  }
  MediaUrls none(nullptr);
  ASSIGN_OR_RETURN(const std::string* file, (urls_ != nullptr ? *urls_ : none).find(field.text, field.name));
  return file != nullptr ? std::optional<std::string>(*file) : std::nullopt;
}

Result<std::string> MediaParts::take(const Json& part, const std::string& type, const std::string& where,
                                     std::initializer_list<std::string_view> others) {
  if (!is_media_type(dialect_, facts_, type)) {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted {}", where, type.substr(0, kShownBytes),
                 wanted_types(dialect_, facts_, others));
  }
  ASSIGN_OR_RETURN(const MediaField field, read_media_field(dialect_, part, type, where));
  if (field.form == MediaForm::kVideo) {
    RETURN_IF_ERROR(take_video(field, where));
    return std::string("video");
  }
  ASSIGN_OR_RETURN(std::optional<std::string> bytes, read_bytes(field));
  const bool audio = field.form == MediaForm::kAudio;
  if (!bytes) {
    RETURN_IF_ERROR(count(where));
  } else if (audio) {
    RETURN_IF_ERROR(add_audio(std::move(*bytes), where));
  } else {
    RETURN_IF_ERROR(add(read_picture(std::move(*bytes), field.low_detail, *facts_.pictures), where));
  }
  return std::string(audio ? "audio" : "image");
}

Status MediaParts::add_audio(std::string bytes, const std::string& where) {
  if (!facts_.audio) return error(StatusCode::kUnsupported, "{} is an audio, and this model takes none", where);
  return add(read_audio(std::move(bytes), *facts_.audio), where);
}

Status MediaParts::count(const std::string& where) {
  if (++count_ <= wire::kMaxPromptMedia) return ok_status();
  return invalid_argument("{} is one more than {} pictures, audios and groups of frames; wanted at most so many", where,
                          wire::kMaxPromptMedia);
}

Status MediaParts::add(Result<wire::PromptMedia> media, const std::string& where) {
  if (!media.ok()) return media.status().with_prefix(where);
  return add_item({std::move(media).value()}, where);
}

// Each group of its frames counts as a picture.
Status MediaParts::take_video(const MediaField& field, const std::string& where) {
  MediaUrls none(nullptr);
  ASSIGN_OR_RETURN(const std::vector<PromptItem>* frames,
                   (urls_ != nullptr ? *urls_ : none).find_video(field.text, field.name));
  if (frames == nullptr) return count(where);
  for (const PromptItem& item : *frames) RETURN_IF_ERROR(add_item(item, where));
  return ok_status();
}

Status MediaParts::add_item(PromptItem item, const std::string& where) {
  RETURN_IF_ERROR(count(where));
  bytes_ += item.media.bytes.bytes.size();
  if (bytes_ > wire::kMaxPromptMediaBytes) {
    return error(StatusCode::kTooLarge,
                 "the pictures, frames and audios up to {} have {} bytes; wanted at most {} in one request", where,
                 bytes_, wire::kMaxPromptMediaBytes);
  }
  item.media.field = where;
  media_.push_back(std::move(item));
  return ok_status();
}

Result<PromptMediaList> MediaParts::list() && {
  if (urls_ != nullptr) RETURN_IF_ERROR(urls_->check_complete());
  if (media_.empty()) return PromptMediaList();
  return std::make_shared<const std::vector<PromptItem>>(std::move(media_));
}

}  // namespace millrace::api
