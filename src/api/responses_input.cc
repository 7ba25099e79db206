#include "api/responses_input.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "api/content_blocks.h"
#include "api/routes.h"
#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

class InputReader {
 public:
  explicit InputReader(MediaParts& media) : media_(media) {}

  Status add_instructions(const Json& instructions);
  Status add(const Json& item, const std::string& name);
  Status finish(OrderedJson& chat);

 private:
  Status read_content(const Json& content, const std::string& name, ChatContent& out);
  Status add_message(const Json& item, const std::string& name);
  Status add_call(const Json& item, const std::string& name);
  Status add_output(const Json& item, const std::string& name);
  Status add_reasoning(const Json& item, const std::string& name);
  void enter(const char* role);

  MediaParts& media_;
  OrderedJson out_ = OrderedJson::array();
  ChatTurn turn_;  // under way: the assistant's, or the system's at the beginning
};

// A string, or a list of parts.
Status InputReader::read_content(const Json& content, const std::string& name, ChatContent& out) {
  if (content.is_string()) return out.add_text(content.get_ref<const std::string&>()), ok_status();
  if (!content.is_array()) return wrong_type(name, content, "a string or an array of parts");
  if (content.empty()) out.add_text("");
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string part_name = fmt::format("{}[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, read_block_type(content[i], part_name));
    if (type != "input_text" && type != "output_text" && type != "refusal") {
      ASSIGN_OR_RETURN(const std::string part,
                       media_.take(content[i], type, part_name, {"input_text", "output_text", "refusal"}));
      out.add_part(part);
      continue;
    }
    ASSIGN_OR_RETURN(const std::string text,
                     read_block_string(content[i], type == "refusal" ? "refusal" : "text", part_name));
    out.add_text(text);
  }
  return ok_status();
}

// Items of one turn follow each other.
void InputReader::enter(const char* role) {
  if (turn_.role == role) return;
  turn_.end(out_);
  turn_.role = role;
}

Status InputReader::add_instructions(const Json& instructions) {
  if (!instructions.is_string()) return wrong_type("instructions", instructions, "a string");
  const auto& text = instructions.get_ref<const std::string&>();
  if (text.empty()) return ok_status();
  enter("system");
  turn_.content.add_text(text);
  return ok_status();
}

Status InputReader::add_message(const Json& item, const std::string& name) {
  ASSIGN_OR_RETURN(std::string role, read_block_string(item, "role", name));
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return invalid_argument("{}.role is '{}'; wanted user, assistant, system or developer", name,
                            role.substr(0, kShownBytes));
  }
  const Json* content = json_find(item, "content");
  if (!content) return invalid_argument("{}.content is missing; wanted a string or an array of parts", name);
  if (role == "developer") role = "system";  // a name of OpenAI's models, which most templates leave out
  const bool joined = role == "assistant" || (role == "system" && out_.empty());
  if (joined) {
    enter(role.c_str());
    return read_content(*content, name + ".content", turn_.content);
  }
  enter("");
  ChatContent read;
  RETURN_IF_ERROR(read_content(*content, name + ".content", read));
  out_.push_back({{"role", std::move(role)}, {"content", read.take()}});
  return ok_status();
}

Status InputReader::add_call(const Json& item, const std::string& name) {
  ASSIGN_OR_RETURN(std::string id, read_block_string(item, "call_id", name));
  ASSIGN_OR_RETURN(std::string function, read_block_string(item, "name", name));
  ASSIGN_OR_RETURN(std::string arguments, read_block_string(item, "arguments", name));
  enter("assistant");
  if (turn_.calls.size() == wire::kMaxTools) {
    return invalid_argument("{} is call {} of one turn; wanted at most {}", name, wire::kMaxTools + 1, wire::kMaxTools);
  }
  turn_.calls.push_back({{"id", std::move(id)},
                         {"type", "function"},
                         {"function", {{"name", std::move(function)}, {"arguments", std::move(arguments)}}}});
  return ok_status();
}

Status InputReader::add_output(const Json& item, const std::string& name) {
  ASSIGN_OR_RETURN(std::string id, read_block_string(item, "call_id", name));
  const Json* output = json_find(item, "output");
  if (!output) return invalid_argument("{}.output is missing; wanted a string or an array of parts", name);
  ChatContent content;
  RETURN_IF_ERROR(read_content(*output, name + ".output", content));
  enter("");
  out_.push_back({{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", content.take()}});
  return ok_status();
}

// The text of an earlier answer. A summary is not what was thought, and encrypted reasoning is another server's.
Status InputReader::add_reasoning(const Json& item, const std::string& name) {
  const Json* content = json_find(item, "content");
  if (!content) return ok_status();
  if (!content->is_array()) return wrong_type(name + ".content", *content, "an array of parts");
  for (std::size_t i = 0; i < content->size(); ++i) {
    const std::string part_name = fmt::format("{}.content[{}]", name, i);
    ASSIGN_OR_RETURN(const std::string type, read_block_type((*content)[i], part_name));
    if (type != "reasoning_text") {
      return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted reasoning_text", part_name,
                   type.substr(0, kShownBytes));
    }
    ASSIGN_OR_RETURN(const std::string text, read_block_string((*content)[i], "text", part_name));
    enter("assistant");
    turn_.reasoning.add_text(text);
  }
  return ok_status();
}

Status InputReader::add(const Json& item, const std::string& name) {
  if (!item.is_object()) return wrong_type(name, item, "an object");
  std::string type = "message";
  RETURN_IF_ERROR(json_read(item, "type", type).with_prefix(name));
  if (type == "message") return add_message(item, name);
  if (type == "function_call") return add_call(item, name);
  if (type == "function_call_output") return add_output(item, name);
  if (type == "reasoning") return add_reasoning(item, name);
  return error(StatusCode::kUnsupported,
               "{}.type is '{}'; wanted message, function_call, function_call_output or reasoning", name,
               type.substr(0, kShownBytes));
}

Status InputReader::finish(OrderedJson& chat) {
  turn_.end(out_);
  if (out_.empty()) return invalid_argument("input has no message; wanted at least one");
  if (out_.size() > kMaxMessages) {
    return invalid_argument("input has {} messages with the instructions; wanted at most {}", out_.size(),
                            kMaxMessages);
  }
  chat["messages"] = std::move(out_);
  return ok_status();
}

}  // namespace

Status translate_input(const Json& body, MediaParts& media, OrderedJson& chat) {
  InputReader reader(media);
  if (const Json* instructions = json_find(body, "instructions")) {
    RETURN_IF_ERROR(reader.add_instructions(*instructions));
  }
  const Json* input = json_find(body, "input");
  if (!input) return invalid_argument("input is missing; wanted a string or an array of items");
  if (input->is_string()) {
    RETURN_IF_ERROR(reader.add({{"role", "user"}, {"content", *input}}, "input"));
    return reader.finish(chat);
  }
  if (!input->is_array()) return wrong_type("input", *input, "a string or an array of items");
  if (input->empty() || input->size() > kMaxMessages) {
    return invalid_argument("input has {} items; wanted 1 to {}", input->size(), kMaxMessages);
  }
  for (std::size_t i = 0; i < input->size(); ++i) {
    RETURN_IF_ERROR(reader.add((*input)[i], fmt::format("input[{}]", i)));
  }
  return reader.finish(chat);
}

}  // namespace millrace::api
