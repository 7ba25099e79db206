#include "api/realtime/item_fields.h"

#include <nlohmann/json.hpp>

#include "api/content_blocks.h"
#include "api/realtime/input_audio.h"
#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/reply_format.h"
#include "api/tool_fields.h"
#include "media/data_url.h"

namespace millrace::api {
namespace {

constexpr const char* kItem = "item";

// The one that was taken.
Result<PromptItem> only_item(MediaParts media) {
  ASSIGN_OR_RETURN(const PromptMediaList list, std::move(media).list());
  CHECK(list != nullptr && list->size() == 1);
  return list->front();
}

Result<PromptItem> read_audio_part(const Json& part, const std::string& where, const ModelFacts& model) {
  RETURN_IF_ERROR(check_members(part, where, {"type", "audio"}));
  ASSIGN_OR_RETURN(const std::string text, read_block_string(part, "audio", where));
  const auto bytes = decode_base64(text, wire::kMaxMediaBytes);
  if (!bytes.ok()) return bytes.status().with_prefix(where + ".audio");
  ASSIGN_OR_RETURN(std::string wav,
                   wav_of({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, where + ".audio"));
  MediaParts media(model.media, MediaDialect::kResponses);
  RETURN_IF_ERROR(media.add_audio(std::move(wav), where));
  return only_item(std::move(media));
}

Result<PromptItem> read_picture_part(const Json& part, const std::string& where, const ModelFacts& model) {
  RETURN_IF_ERROR(check_members(part, where, {"type", "image_url", "detail"}));
  MediaParts media(model.media, MediaDialect::kResponses);
  RETURN_IF_ERROR(media.take(part, "input_image", where, {"input_text"}).status());
  return only_item(std::move(media));
}

Result<RealtimePart> read_part(const Json& part, const std::string& role, const std::string& where,
                               const ModelFacts& model) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(part, where));
  const bool assistant = role == "assistant";
  RealtimePart out;
  if (assistant ? type == "text" || type == "output_text" : type == "input_text" || type == "text") {
    RETURN_IF_ERROR(check_members(part, where, {"type", "text"}));
    ASSIGN_OR_RETURN(out.text, read_block_string(part, "text", where));
  } else if (assistant && (type == "audio" || type == "output_audio")) {
    RETURN_IF_ERROR(check_members(part, where, {"type", "transcript"}));
    ASSIGN_OR_RETURN(out.text, read_block_string(part, "transcript", where));
  } else if (role == "user" && type == "input_audio") {
    ASSIGN_OR_RETURN(out.media, read_audio_part(part, where, model));
  } else if (role == "user" && type == "input_image") {
    ASSIGN_OR_RETURN(out.media, read_picture_part(part, where, model));
  } else {
    return error(StatusCode::kUnsupported, "{}.type is '{}' of the role {}; wanted {}", where,
                 type.substr(0, kShownBytes), role,
                 assistant        ? "output_text or output_audio"
                 : role == "user" ? "input_text, input_audio or input_image"
                                  : "input_text");
  }
  return out;
}

// Its id, where the client has one.
Status read_item_name(const Json& item, RealtimeItem& out) {
  RETURN_IF_ERROR(json_read(item, "id", out.id).with_prefix(kItem));
  if (!out.id.empty() && out.id.size() <= kMaxRealtimeIdBytes && out.id != "root") return ok_status();
  return invalid_argument("item.id is '{}' of {} bytes; wanted 1 to {}, and not \"root\"",
                          out.id.substr(0, kShownBytes), out.id.size(), kMaxRealtimeIdBytes);
}

// The call of a function, or what came of one.
Status read_function_item(const Json& item, bool call, RealtimeItem& out) {
  out.kind = call ? RealtimeItem::Kind::kCall : RealtimeItem::Kind::kOutput;
  out.role = call ? "assistant" : "tool";
  const char* const text = call ? "arguments" : "output";
  RETURN_IF_ERROR(call ? check_members(item, kItem, {"type", "id", "object", "status", "call_id", "name", "arguments"})
                       : check_members(item, kItem, {"type", "id", "object", "status", "call_id", "output"}));
  ASSIGN_OR_RETURN(out.call_id, read_block_string(item, "call_id", kItem));
  if (out.call_id.empty() || out.call_id.size() > kMaxRealtimeIdBytes) {
    return invalid_argument("item.call_id has {} bytes; wanted 1 to {}", out.call_id.size(), kMaxRealtimeIdBytes);
  }
  if (call) {
    ASSIGN_OR_RETURN(out.name, read_block_string(item, "name", kItem));
    std::set<std::string> names;
    RETURN_IF_ERROR(check_tool_name(out.name, kItem, names));
  }
  ASSIGN_OR_RETURN(std::string content, read_block_string(item, text, kItem));
  out.parts.push_back({std::move(content), {}});
  return ok_status();
}

}  // namespace

Result<RealtimeItem> read_item(const Json& item, const ModelFacts& model) {
  ASSIGN_OR_RETURN(const std::string type, read_block_type(item, kItem));
  const bool call = type == "function_call";
  if (type != "message" && !call && type != "function_call_output") {
    return error(StatusCode::kUnsupported, "item.type is '{}'; wanted message, function_call or function_call_output",
                 type.substr(0, kShownBytes));
  }
  RealtimeItem out{.id = make_id("item_")};
  if (type != "message") {
    RETURN_IF_ERROR(read_item_name(item, out));
    RETURN_IF_ERROR(read_function_item(item, call, out));
    return out;
  }
  RETURN_IF_ERROR(check_members(item, kItem, {"type", "id", "object", "status", "role", "content"}));
  RETURN_IF_ERROR(read_item_name(item, out));
  ASSIGN_OR_RETURN(out.role, read_block_string(item, "role", kItem));
  if (out.role != "user" && out.role != "assistant" && out.role != "system") {
    return invalid_argument("item.role is '{}'; wanted user, assistant or system", out.role.substr(0, kShownBytes));
  }
  const Json* content = json_find(item, "content");
  if (!content || !content->is_array() || content->empty()) {
    return invalid_argument("item.content is {}; wanted an array of parts",
                            content ? shown_value(*content) : "missing");
  }
  for (std::size_t i = 0; i < content->size(); ++i) {
    ASSIGN_OR_RETURN(RealtimePart part, read_part((*content)[i], out.role, fmt::format("item.content[{}]", i), model));
    out.parts.push_back(std::move(part));
  }
  return out;
}

Result<RealtimeItem> spoken_item(std::string wav, const ModelFacts& model, const std::string& where) {
  MediaParts media(model.media, MediaDialect::kResponses);
  RETURN_IF_ERROR(media.add_audio(std::move(wav), where));
  ASSIGN_OR_RETURN(PromptItem item, only_item(std::move(media)));
  RealtimeItem out{.id = make_id("item_"), .role = "user"};
  out.parts.push_back({"", std::move(item)});
  return out;
}

}  // namespace millrace::api
