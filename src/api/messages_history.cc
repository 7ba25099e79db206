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

// A string, or a list of text blocks.
Result<std::string> read_texts(const Json& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return wrong_type(name, content, "a string or an array of text blocks");
  std::string text;
  bool any = false;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string block_name = fmt::format("{}[{}]", name, i);
    const Result<std::string> type = read_block_type(content[i], block_name);
    if (!type.ok()) return type.status();
    if (*type != "text") {
      return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'text': this model takes text only", block_name,
                   type->substr(0, kShownBytes));
    }
    ASSIGN_OR_RETURN(const std::string more, read_block_string(content[i], "text", block_name));
    append_line(text, any, more);
  }
  return text;
}

class HistoryReader {
 public:
  void add_system(std::string text) { out_.push_back({{"role", "system"}, {"content", std::move(text)}}); }
  Status add(const Json& message, const OrderedJson& ordered, const std::string& name);
  Status finish(OrderedJson& chat);

 private:
  Status add_user_block(const Json& block, const std::string& type, const std::string& name);
  Status add_assistant_block(const Json& block, const OrderedJson& ordered, const std::string& type,
                             const std::string& name);
  Status add_result(const Json& block, const std::string& name);

  OrderedJson out_ = OrderedJson::array();
  ChatTurn turn_;  // under way
};

Status HistoryReader::add_result(const Json& block, const std::string& name) {
  ASSIGN_OR_RETURN(std::string id, read_block_string(block, "tool_use_id", name));
  std::string text;
  if (const Json* content = json_find(block, "content")) {
    ASSIGN_OR_RETURN(text, read_texts(*content, name + ".content"));
  }
  bool is_error = false;
  RETURN_IF_ERROR(json_read(block, "is_error", is_error).with_prefix(name));
  turn_.end(out_);  // text before a result
  OrderedJson message = {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(text)}};
  if (is_error) message["is_error"] = true;  // for a template that looks at it
  out_.push_back(std::move(message));
  return ok_status();
}

Status HistoryReader::add_user_block(const Json& block, const std::string& type, const std::string& name) {
  if (type == "tool_result") return add_result(block, name);
  if (type != "text") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted text or tool_result: this model takes text only",
                 name, type.substr(0, kShownBytes));
  }
  ASSIGN_OR_RETURN(const std::string text, read_block_string(block, "text", name));
  turn_.add_text(text);
  return ok_status();
}

Status HistoryReader::add_assistant_block(const Json& block, const OrderedJson& ordered, const std::string& type,
                                          const std::string& name) {
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string text, read_block_string(block, "text", name));
    turn_.add_text(text);
  } else if (type == "thinking") {
    ASSIGN_OR_RETURN(const std::string thinking, read_block_string(block, "thinking", name));
    turn_.add_reasoning(thinking);
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

Status HistoryReader::add(const Json& message, const OrderedJson& ordered, const std::string& name) {
  if (!message.is_object()) return wrong_type(name, message, "an object");
  ASSIGN_OR_RETURN(const std::string role, read_block_string(message, "role", name));
  if (role != "user" && role != "assistant") {
    return invalid_argument("{}.role is '{}'; wanted user or assistant: instructions stand in system", name,
                            role.substr(0, kShownBytes));
  }
  if (role != turn_.role) turn_.end(out_);
  turn_.role = role;
  const Json* content = json_find(message, "content");
  if (!content) return invalid_argument("{}.content is missing; wanted a string or an array of blocks", name);
  if (content->is_string()) {
    turn_.add_text(content->get_ref<const std::string&>());
    return ok_status();
  }
  if (!content->is_array()) return wrong_type(name + ".content", *content, "a string or an array of blocks");
  if (content->empty() && !turn_.has_text) turn_.add_text("");
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const std::string block_name = fmt::format("{}.content[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, read_block_type(block, block_name));
    RETURN_IF_ERROR(role == "user" ? add_user_block(block, type, block_name)
                                   : add_assistant_block(block, ordered["content"][i], type, block_name));
  }
  return ok_status();
}

Status HistoryReader::finish(OrderedJson& chat) {
  const bool prefilled = turn_.role == "assistant";
  if (prefilled && (!turn_.calls.empty() || turn_.has_reasoning)) {
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

Status translate_history(const Json& body, const OrderedJson& ordered, OrderedJson& chat) {
  HistoryReader reader;
  if (const Json* system = json_find(body, "system")) {
    ASSIGN_OR_RETURN(std::string text, read_texts(*system, "system"));
    if (!text.empty()) reader.add_system(std::move(text));
  }
  const Json* messages = json_find(body, "messages");
  if (!messages) return invalid_argument("messages is missing; wanted an array of messages");
  if (!messages->is_array()) return wrong_type("messages", *messages, "an array");
  if (messages->empty() || messages->size() > kMaxMessages) {
    return invalid_argument("messages has {} entries; wanted 1 to {}", messages->size(), kMaxMessages);
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    RETURN_IF_ERROR(reader.add((*messages)[i], ordered["messages"][i], fmt::format("messages[{}]", i)));
  }
  return reader.finish(chat);
}

}  // namespace millrace::api
