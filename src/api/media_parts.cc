#include "api/media_parts.h"

#include <nlohmann/json.hpp>

#include "media/data_url.h"
#include "stages/media/prompt_pictures.h"

namespace millrace::api {
namespace {

constexpr std::size_t kShownBytes = 64;

// OpenAI's {"url": ..., "detail": ...}, or the URL alone.
Status read_url(const Json& part, const std::string& where, std::string& url, std::string& detail) {
  const Json* value = json_find(part, "image_url");
  if (value == nullptr) return invalid_argument("{}.image_url is missing; wanted an object with a url", where);
  if (value->is_string()) {
    url = value->get_ref<const std::string&>();
    return ok_status();
  }
  if (!value->is_object()) {
    return invalid_argument("{}.image_url is of type {}; wanted an object with a url", where, json_type_name(*value));
  }
  const std::string name = where + ".image_url";
  const Json* text = json_find(*value, "url");
  if (text == nullptr || !text->is_string()) return invalid_argument("{}.url is no string; wanted a data: URL", name);
  url = text->get_ref<const std::string&>();
  return json_read(*value, "detail", detail).with_prefix(name);
}

}  // namespace

Status MediaParts::take(Json& part, const std::string& type, const std::string& where) {
  if (!takes_pictures()) {
    return invalid_argument("{}.type is '{}'; wanted 'text': this model takes text only", where,
                            type.substr(0, kShownBytes));
  }
  if (type != "image_url") {
    return invalid_argument("{}.type is '{}'; wanted 'text' or 'image_url'", where, type.substr(0, kShownBytes));
  }
  std::string url, detail = "auto";
  RETURN_IF_ERROR(read_url(part, where, url, detail));
  RETURN_IF_ERROR(add(url, detail, where));
  part = {{"type", "image"}};
  return ok_status();
}

Status MediaParts::add(const std::string& url, const std::string& detail, const std::string& where) {
  if (pictures_.size() >= wire::kMaxPromptMedia) {
    return invalid_argument("{} is one picture more than {}; wanted at most so many", where, wire::kMaxPromptMedia);
  }
  if (!is_data_url(url)) {
    return error(StatusCode::kUnsupported, "{}.image_url.url begins with '{}'; wanted a data: URL: no others are read",
                 where, url.substr(0, 8));
  }
  if (detail != "auto" && detail != "low" && detail != "high") {
    return invalid_argument("{}.image_url.detail is '{}'; wanted auto, low or high", where,
                            detail.substr(0, kShownBytes));
  }
  const auto data = read_data_url(url, wire::kMaxMediaBytes);
  if (!data.ok()) return data.status().with_prefix(where + ".image_url.url");
  auto picture = read_picture({data->bytes.begin(), data->bytes.end()}, detail == "low", *facts_);
  if (!picture.ok()) return picture.status().with_prefix(where);
  bytes_ += picture->bytes.bytes.size();
  if (bytes_ > wire::kMaxPromptMediaBytes) {
    return error(StatusCode::kTooLarge, "the pictures up to {} have {} bytes; wanted at most {} in one request", where,
                 bytes_, wire::kMaxPromptMediaBytes);
  }
  picture->field = where;
  pictures_.push_back(std::move(*picture));
  return ok_status();
}

std::shared_ptr<const std::vector<wire::PromptMedia>> MediaParts::pictures() && {
  if (pictures_.empty()) return nullptr;
  return std::make_shared<const std::vector<wire::PromptMedia>>(std::move(pictures_));
}

}  // namespace millrace::api
