#include "api/stored_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "api/content_blocks.h"
#include "api/reply_format.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The earliest first.
std::vector<const StoredResponse*> conversation_of(const StoredResponse* last) {
  std::vector<const StoredResponse*> out;
  for (; last != nullptr; last = last->before.get()) out.push_back(last);
  std::reverse(out.begin(), out.end());
  return out;
}

Status no_such_response(std::string_view id, Gone gone) {
  return invalid_argument(
      "previous_response_id is '{}', and no such response is stored: {}; wanted the id of a stored one, or the earlier "
      "items in input",
      id.substr(0, kShownBytes), text_of(gone));
}

// Puts items in the place of references to them. What a few bytes refer to may be large, and one item may be referred
// to again and again, so the items are bounded as a conversation is, and each response is parsed once.
class ReferredItems {
 public:
  ReferredItems(const ResponseStore& store, int64_t now_s) : store_(store), now_s_(now_s) {}

  Result<Json> take(const Json& reference, const std::string& name) {
    std::string id;
    RETURN_IF_ERROR(json_read(reference, "id", id).with_prefix(name));
    const Json* item = find(id);
    if (item == nullptr) {
      return invalid_argument("{}.id is '{}', and no such item is stored; wanted the item itself", name,
                              id.substr(0, kShownBytes));
    }
    bytes_ += item->dump().size();
    if (bytes_ <= kMaxConversationBytes) return *item;
    return invalid_argument("{}.id refers to an item that brings those of this input to {} bytes; wanted at most {}",
                            name, bytes_, kMaxConversationBytes);
  }

 private:
  const Json* find(const std::string& id) {
    const StoredResponsePtr response = store_.find_item(id, now_s_);
    if (!response) return nullptr;
    const auto [parsed, is_new] = outputs_.try_emplace(response);
    if (is_new) parsed->second = std::move(Json::parse(response->body).at("output"));
    const auto item = std::ranges::find_if(parsed->second, [&](const Json& one) { return one.at("id") == id; });
    return item == parsed->second.end() ? nullptr : &*item;
  }

  const ResponseStore& store_;
  const int64_t now_s_;
  std::size_t bytes_ = 0;
  std::map<StoredResponsePtr, Json> outputs_;
};

bool is_reference(const Json& item) {
  const Json* type = item.is_object() ? json_find(item, "type") : nullptr;
  return type != nullptr && *type == "item_reference";
}

OrderedJson as_parts(const OrderedJson& content, bool assistant) {
  if (!content.is_string()) return content;
  return OrderedJson::array({{{"type", assistant ? "output_text" : "input_text"}, {"text", content}}});
}

// As a client gets it back: with all that an item has.
OrderedJson complete_item(OrderedJson item) {
  if (!item.is_object()) return item;
  if (!item.contains("type")) item["type"] = "message";
  const std::string type = item["type"].is_string() ? item["type"].get<std::string>() : "";
  if (!item.contains("id") || !item["id"].is_string()) {
    item["id"] = make_id(type == "message" ? "msg_" : type == "reasoning" ? "rs_" : "fc_");
  }
  if (!item.contains("status")) item["status"] = "completed";
  if (type == "message" && item.contains("content")) {
    item["content"] = as_parts(item["content"], item.contains("role") && item["role"] == "assistant");
  }
  return item;
}

std::string complete_items(const Json& items) {
  OrderedJson out = OrderedJson::array();
  for (OrderedJson& item : parse_ordered_json(items.dump())) out.push_back(complete_item(std::move(item)));
  return out.dump();
}

}  // namespace

Result<StoredInput> resolve_stored_input(Json& body, const ResponseStore& store, int64_t now_s) {
  StoredInput out;
  std::string previous;
  RETURN_IF_ERROR(json_read(body, "previous_response_id", previous));
  const auto input = body.find("input");
  if (input == body.end()) return out;  // translate_input() refuses it
  Json items = input->is_string() ? Json::array({{{"role", "user"}, {"content", *input}}}) : *input;
  if (!items.is_array()) return out;
  ReferredItems referred(store, now_s);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!is_reference(items[i])) continue;
    ASSIGN_OR_RETURN(items[i], referred.take(items[i], fmt::format("input[{}]", i)));
  }
  out.items = complete_items(items);
  if (!previous.empty()) {
    out.before = store.find(previous, now_s);
    if (!out.before) return no_such_response(previous, store.why_gone(previous, now_s));
    if (out.before->background == Background::kRunning) {
      return invalid_argument("previous_response_id is '{}', which is in progress; wanted one that has ended",
                              previous);
    }
    if (out.before->conversation_bytes > kMaxConversationBytes) {
      return invalid_argument("previous_response_id names a conversation of {} bytes; wanted at most {}",
                              out.before->conversation_bytes, kMaxConversationBytes);
    }
    if (out.before->turn >= kMaxConversationTurns) {
      return invalid_argument("previous_response_id names turn {} of a conversation; wanted one below {}",
                              out.before->turn, kMaxConversationTurns);
    }
    Json all = Json::array();
    for (const StoredResponse* earlier : conversation_of(out.before.get())) {
      for (Json& item : Json::parse(earlier->input)) all.push_back(std::move(item));
      Json answer = Json::parse(earlier->body);
      for (Json& item : answer["output"]) all.push_back(std::move(item));
    }
    for (Json& item : items) all.push_back(std::move(item));
    items = std::move(all);
  }
  if (!input->is_string() || !previous.empty()) *input = std::move(items);
  return out;
}

std::size_t bytes_referred_to(const Json& body, const ResponseStore& store, int64_t now_s) {
  std::size_t bytes = 0;
  const auto add = [&](const StoredResponsePtr& response) { bytes += response ? response->conversation_bytes : 0; };
  const Json* previous = json_find(body, "previous_response_id");
  if (previous && previous->is_string()) add(store.find(previous->get<std::string>(), now_s));
  const Json* input = json_find(body, "input");
  if (!input || !input->is_array()) return bytes;
  for (const Json& item : *input) {
    const Json* id = is_reference(item) ? json_find(item, "id") : nullptr;
    if (id && id->is_string()) add(store.find_item(id->get<std::string>(), now_s));
  }
  return bytes;
}

OrderedJson input_items(const StoredResponse& response) {
  OrderedJson out = OrderedJson::array();
  for (const StoredResponse* turn : conversation_of(&response)) {
    for (OrderedJson& item : parse_ordered_json(turn->input)) out.push_back(std::move(item));
    if (turn == &response) break;
    OrderedJson answer = parse_ordered_json(turn->body);
    for (OrderedJson& item : answer["output"]) out.push_back(std::move(item));
  }
  return out;
}

}  // namespace millrace::api
