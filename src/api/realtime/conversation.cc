#include "api/realtime/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/content_blocks.h"
#include "api/realtime/limits.h"
#include "api/realtime/server_events.h"

namespace millrace::api {
namespace {

bool is_audio(const RealtimePart& part) { return part.media && part.media->media.kind == wire::MediaKind::kAudio; }

nlohmann::ordered_json part_json(const RealtimeItem& item, const RealtimePart& part, const RealtimeDialect& dialect) {
  if (is_audio(part)) return {{"type", "input_audio"}, {"transcript", or_null(part.text)}};
  if (part.media) return {{"type", "input_image"}};
  if (item.role != "assistant") return {{"type", "input_text"}, {"text", part.text}};
  if (item.spoken) return {{"type", dialect.audio_part}, {"transcript", part.text}};
  return {{"type", dialect.text_part}, {"text", part.text}};
}

void add_function_item(const RealtimeItem& item, nlohmann::ordered_json& messages) {
  const std::string text = item.parts.empty() ? "" : item.parts.front().text;
  if (item.kind == RealtimeItem::Kind::kOutput) {
    messages.push_back({{"role", "tool"}, {"tool_call_id", item.call_id}, {"content", text}});
    return;
  }
  if (messages.empty() || messages.back()["role"] != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  messages.back()["tool_calls"].push_back(
      {{"id", item.call_id}, {"type", "function"}, {"function", {{"name", item.name}, {"arguments", text}}}});
}

}  // namespace

std::size_t RealtimeItem::text_bytes() const {
  std::size_t out = name.size() + call_id.size();
  for (const RealtimePart& part : parts) out += part.text.size();
  return out;
}

std::size_t RealtimeItem::bytes() const {
  std::size_t out = text_bytes();
  for (const RealtimePart& part : parts) out += part.media ? part.media->media.bytes.bytes.size() : 0;
  return out;
}

std::size_t RealtimeItem::media() const {
  return static_cast<std::size_t>(
      std::count_if(parts.begin(), parts.end(), [](const RealtimePart& part) { return part.media.has_value(); }));
}

nlohmann::ordered_json item_json(const RealtimeItem& item, const RealtimeDialect& dialect) {
  if (item.kind != RealtimeItem::Kind::kMessage) {
    const bool call = item.kind == RealtimeItem::Kind::kCall;
    nlohmann::ordered_json out = {{"id", item.id},
                                  {"object", "realtime.item"},
                                  {"type", call ? "function_call" : "function_call_output"},
                                  {"status", item.status},
                                  {"call_id", item.call_id}};
    if (call) out["name"] = item.name;
    out[call ? "arguments" : "output"] = item.parts.empty() ? "" : item.parts.front().text;
    return out;
  }
  nlohmann::ordered_json content = nlohmann::ordered_json::array();
  for (const RealtimePart& part : item.parts) content.push_back(part_json(item, part, dialect));
  return {{"id", item.id},         {"object", "realtime.item"}, {"type", "message"},
          {"status", item.status}, {"role", item.role},         {"content", std::move(content)}};
}

std::size_t Conversation::bytes() const {
  std::size_t out = 0;
  for (const RealtimeItem& item : items_) out += item.bytes();
  return out;
}

std::size_t Conversation::text_bytes() const {
  std::size_t out = 0;
  for (const RealtimeItem& item : items_) out += item.text_bytes();
  return out;
}

RealtimeItem* Conversation::find(const std::string& id) {
  const auto found = std::find_if(items_.begin(), items_.end(), [&](const auto& item) { return item.id == id; });
  return found == items_.end() ? nullptr : &*found;
}

bool Conversation::remove(const std::string& id) {
  return std::erase_if(items_, [&](const RealtimeItem& item) { return item.id == id; }) > 0;
}

std::string Conversation::previous_of(const std::string& id) const {
  for (std::size_t i = 1; i < items_.size(); ++i) {
    if (items_[i].id == id) return items_[i - 1].id;
  }
  return "";
}

Status Conversation::check(const RealtimeItem& item) const {
  if (items_.size() >= kMaxRealtimeItems) {
    return error(StatusCode::kTooLarge, "the conversation has {} items; wanted at most so many: delete some",
                 items_.size());
  }
  if (const std::size_t wanted = bytes() + item.bytes(); wanted > kMaxRealtimeConversationBytes) {
    return error(StatusCode::kTooLarge, "the conversation has {} bytes with this item; wanted at most {}: delete items",
                 wanted, kMaxRealtimeConversationBytes);
  }
  std::size_t media = item.media();
  for (const RealtimeItem& each : items_) media += each.media();
  if (media > wire::kMaxPromptMedia) {
    return error(StatusCode::kTooLarge,
                 "the conversation has {} audios and pictures with this item; wanted at most {}: delete items", media,
                 wire::kMaxPromptMedia);
  }
  const auto same = [&](const RealtimeItem& each) { return each.id == item.id; };
  if (std::none_of(items_.begin(), items_.end(), same)) return ok_status();
  return invalid_argument("item.id is '{}', which an item of the conversation has", item.id);
}

Status Conversation::add(RealtimeItem item, const std::optional<std::string>& previous) {
  RETURN_IF_ERROR(check(item));
  auto position = items_.end();
  if (previous) {
    const auto before =
        std::find_if(items_.begin(), items_.end(), [&](const RealtimeItem& each) { return each.id == *previous; });
    if (*previous == "root") {
      position = items_.begin();
    } else if (before == items_.end()) {
      return invalid_argument("previous_item_id is '{}'; wanted the id of an item, or \"root\"",
                              previous->substr(0, kShownBytes));
    } else {
      position = before + 1;
    }
  }
  items_.insert(position, std::move(item));
  return ok_status();
}

Result<nlohmann::ordered_json> Conversation::messages(const std::string& instructions, MediaParts& media) const {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  if (!instructions.empty()) out.push_back({{"role", "system"}, {"content", instructions}});
  for (const RealtimeItem& item : items_) {
    if (item.kind != RealtimeItem::Kind::kMessage) {
      add_function_item(item, out);
      continue;
    }
    ChatContent content;
    for (const RealtimePart& part : item.parts) {
      if (!part.media) {
        if (!part.text.empty()) content.add_text(part.text);
        continue;
      }
      RETURN_IF_ERROR(media.add_taken(*part.media, item.id));
      content.add_part(is_audio(part) ? "audio" : "image");
    }
    if (!content.empty()) out.push_back({{"role", item.role}, {"content", content.take()}});
  }
  if (out.empty()) return invalid_argument("the conversation is empty; wanted an item, or instructions");
  return out;
}

}  // namespace millrace::api
