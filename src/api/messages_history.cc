#include "api/messages_history.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/content_blocks.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A string, or a list of text blocks. `media`: takes the blocks of pictures; null: there are none.
Status read_blocks(const Json& content, const std::string& name, MediaParts* media, ChatContent& out) {
  if (content.is_string()) return out.add_text(content.get_ref<const std::string&>()), ok_status();
  if (!content.is_array()) return wrong_type(name, content, "a string or an array of text blocks");
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string block_name = fmt::format("{}[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, read_block_type(content[i], block_name));
    if (type == "text") {
      ASSIGN_OR_RETURN(const std::string text, read_block_string(content[i], "text", block_name));
      out.add_text(text);
    } else if (media != nullptr) {
      ASSIGN_OR_RETURN(const std::string part, media->take(content[i], type, block_name, {"text"}));
      out.add_part(part);
    } else {
      return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted text", block_name, type.substr(0, kShownBytes));
    }
  }
  return ok_status();
}

class HistoryReader {
 public:
  explicit HistoryReader(MediaParts& media) : media_(media) {}

  void add_system(OrderedJson text) { out_.push_back({{"role", "system"}, {"content", std::move(text)}}); }
  Status add(const Json& message, const OrderedJson& ordered, const std::string& name);
  Status finish(OrderedJson& chat);

 private:
  Status add_instructions(const Json& message, const std::string& name);
  Status add_user_block(const Json& block, const std::string& type, const std::string& name);
  Status add_assistant_block(const Json& block, const OrderedJson& ordered, const std::string& type,
                             const std::string& name);
  Status add_result(const Json& block, const std::string& name);

  MediaParts& media_;
  OrderedJson out_ = OrderedJson::array();
  ChatTurn turn_;  // under way
};

Status HistoryReader::add_result(const Json& block, const std::string& name) {
  ASSIGN_OR_RETURN(std::string id, read_block_string(block, "tool_use_id", name));
  ChatContent content;
  if (const Json* given = json_find(block, "content")) {
    RETURN_IF_ERROR(read_blocks(*given, name + ".content", &media_, content));
  }
  bool is_error = false;
  RETURN_IF_ERROR(json_read(block, "is_error", is_error).with_prefix(name));
  turn_.end(out_);  // text before a result
  OrderedJson message = {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", content.take()}};
  if (is_error) message["is_error"] = true;  // for a template that looks at it
  out_.push_back(std::move(message));
  return ok_status();
}

Status HistoryReader::add_user_block(const Json& block, const std::string& type, const std::string& name) {
  if (type == "tool_result") return add_result(block, name);
  if (type != "text") {
    ASSIGN_OR_RETURN(const std::string part, media_.take(block, type, name, {"text", "tool_result"}));
    turn_.content.add_part(part);
    return ok_status();
  }
  ASSIGN_OR_RETURN(const std::string text, read_block_string(block, "text", name));
  turn_.content.add_text(text);
  return ok_status();
}

Status HistoryReader::add_assistant_block(const Json& block, const OrderedJson& ordered, const std::string& type,
                                          const std::string& name) {
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string text, read_block_string(block, "text", name));
    turn_.content.add_text(text);
  } else if (type == "thinking") {
    ASSIGN_OR_RETURN(const std::string thinking, read_block_string(block, "thinking", name));
    turn_.reasoning.add_text(thinking);
  } else if (type == "tool_use") {
    ASSIGN_OR_RETURN(std::string id, read_block_string(block, "id", name));
    ASSIGN_OR_RETURN(std::string function, read_block_string(block, "name", name));
    const Json* input = json_find(block, "input");
    if (!input || !input->is_object()) return invalid_argument("{}.input is no object; wanted one", name);
    turn_.calls.push_back({{"id", std::move(id)},
                           {"type", "function"},
                           {"function", {{"name", std::move(function)}, {"arguments", ordered["input"]}}}});
  } else if (type != "redacted_thinking") {  // which is encrypted, and nothing to this model
    return error(StatusCode::kUnsupported,
                 "{}.type is '{}'; wanted text, thinking, redacted_thinking or tool_use: no tools run here", name,
                 type.substr(0, kShownBytes));
  }
  return ok_status();
}

// Instructions between turns stay where they are.
Status HistoryReader::add_instructions(const Json& message, const std::string& name) {
  const Json* content = json_find(message, "content");
  if (!content) return invalid_argument("{}.content is missing; wanted a string or an array of text blocks", name);
  ChatContent read;
  RETURN_IF_ERROR(read_blocks(*content, name + ".content", nullptr, read));
  turn_.end(out_);
  turn_.role.clear();
  add_system(read.take());
  return ok_status();
}

Status HistoryReader::add(const Json& message, const OrderedJson& ordered, const std::string& name) {
  if (!message.is_object()) return wrong_type(name, message, "an object");
  ASSIGN_OR_RETURN(const std::string role, read_block_string(message, "role", name));
  if (role == "system") return add_instructions(message, name);
  if (role != "user" && role != "assistant") {
    return invalid_argument("{}.role is '{}'; wanted user, assistant or system", name, role.substr(0, kShownBytes));
  }
  if (role != turn_.role) turn_.end(out_);
  turn_.role = role;
  const Json* content = json_find(message, "content");
  if (!content) return invalid_argument("{}.content is missing; wanted a string or an array of blocks", name);
  if (content->is_string()) {
    turn_.content.add_text(content->get_ref<const std::string&>());
    return ok_status();
  }
  if (!content->is_array()) return wrong_type(name + ".content", *content, "a string or an array of blocks");
  if (content->empty() && turn_.content.empty()) turn_.content.add_text("");
  const OrderedJson& blocks = ordered["content"];  // outside of the loop: a search of all keys
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const std::string block_name = fmt::format("{}.content[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, read_block_type(block, block_name));
    RETURN_IF_ERROR(role == "user" ? add_user_block(block, type, block_name)
                                   : add_assistant_block(block, blocks[i], type, block_name));
  }
  return ok_status();
}

Status HistoryReader::finish(OrderedJson& chat) {
  const bool prefilled = turn_.role == "assistant";
  if (prefilled && (!turn_.calls.empty() || !turn_.reasoning.empty())) {
    return invalid_argument(
        "messages has a {} block in its last turn, the assistant's; wanted {}",
        turn_.calls.empty() ? "thinking" : "tool_use",
        turn_.calls.empty() ? "text, which the answer continues" : "a tool_result of the user's next");
  }
  turn_.end(out_);
  chat["messages"] = std::move(out_);
  if (prefilled) chat["continue_final_message"] = true;
  return ok_status();
}

}  // namespace

Status translate_history(const Json& body, const OrderedJson& ordered, MediaParts& media, OrderedJson& chat) {
  HistoryReader reader(media);
  if (const Json* system = json_find(body, "system")) {
    ChatContent content;
    RETURN_IF_ERROR(read_blocks(*system, "system", nullptr, content));
    if (OrderedJson text = content.take(); text != "") reader.add_system(std::move(text));
  }
  const Json* messages = json_find(body, "messages");
  if (!messages) return invalid_argument("messages is missing; wanted an array of messages");
  if (!messages->is_array()) return wrong_type("messages", *messages, "an array");
  if (messages->empty() || messages->size() > kMaxMessages) {
    return invalid_argument("messages has {} entries; wanted 1 to {}", messages->size(), kMaxMessages);
  }
  const OrderedJson& ordered_messages = ordered["messages"];  // outside of the loop: a search of all keys
  for (std::size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_ERROR(reader.add((*messages)[i], ordered_messages[i], fmt::format("messages[{}]", i)));
  }
  return reader.finish(chat);
}

}  // namespace millrace::api
