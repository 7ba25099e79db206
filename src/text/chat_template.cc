#include "text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "text/chat_template_files.h"
#include "text/jinja/code_points.h"
#include "text/jinja/template.h"
#include "text/json_value.h"

namespace millrace {
namespace {

using jinja::DictObject;
using jinja::Kind;
using jinja::MarkedString;
using jinja::SequenceObject;
using jinja::Value;

// Marks the end of the final message's text in the rendered prompt; trusted, so no request can write it.
constexpr std::string_view kFinalMessageTag = "CONTINUE_FINAL_MESSAGE_TAG ";

std::shared_ptr<const Value> from_json(Result<Value> value) {
  // What cannot be converted becomes an undefined value that carries the reason; render() refuses it.
  return std::make_shared<const Value>(value.ok() ? *value : Value::undefined(value.status().message()));
}

Status check_input(const ChatValue& input, std::string_view name, Kind kind, std::string_view wanted) {
  if (input.absent() || input.value()->is_none()) return ok_status();
  const Value& value = *input.value();
  if (value.is_undefined()) return invalid_argument("{}: {}", name, value.undefined_message());
  if (!value.is(kind)) return invalid_argument("{} is of type {}; wanted {}", name, jinja::type_name(value), wanted);
  return ok_status();
}

std::shared_ptr<DictObject> copy_with(const DictObject& source, std::string_view key, Value value) {
  auto copy = std::make_shared<DictObject>(source);
  copy->set(Value::string(std::string(key), false), std::move(value));
  return copy;
}

bool is_trusted_role(const Value& role) {
  return role.is_string() &&
         std::find(std::begin(kTrustedRoles), std::end(kTrustedRoles), role.as_text()) != std::end(kTrustedRoles);
}

// The messages with known roles marked as trusted.
Result<Value> prepare_messages(const Value& messages) {
  std::vector<Value> out;
  for (const Value& message : messages.as<SequenceObject>().items) {
    if (!message.is(Kind::kDict)) {
      return invalid_argument("messages[{}] is of type {}; wanted an object", out.size(), jinja::type_name(message));
    }
    const Value* role = message.as<DictObject>().find("role");
    if (role == nullptr || !is_trusted_role(*role)) {
      out.push_back(message);
    } else {
      out.push_back(
          jinja::make_dict(copy_with(message.as<DictObject>(), "role", Value::string(role->as_text(), true))));
    }
  }
  return jinja::make_list(std::move(out));
}

Value with_tag(const Value& text) {
  MarkedString tagged = text.as_marked();
  tagged.append(kFinalMessageTag, true);
  return Value::string(std::move(tagged));
}

// Appends the tag to the last message's text (its last text part, where the content is a list). `text` gets the text.
Status tag_final_message(Value& messages, std::string& text) {
  auto items = messages.as<SequenceObject>().items;
  if (items.empty()) return invalid_argument("continue_final_message is set but there is no message");
  const DictObject& last = items.back().as<DictObject>();
  const Value* content = last.find("content");
  Value tagged;
  if (content != nullptr && content->is_string()) {
    text = content->as_text();
    tagged = with_tag(*content);
  } else if (content != nullptr && content->is(Kind::kList)) {
    std::vector<Value> parts = content->as<SequenceObject>().items;
    auto part = std::find_if(parts.rbegin(), parts.rend(), [](const Value& candidate) {
      const Value* found = candidate.is(Kind::kDict) ? candidate.as<DictObject>().find("text") : nullptr;
      return found != nullptr && found->is_string();
    });
    if (part == parts.rend()) {
      return invalid_argument("continue_final_message is set but the final message has no text part to continue");
    }
    const Value& part_text = *part->as<DictObject>().find("text");
    text = part_text.as_text();
    *part = jinja::make_dict(copy_with(part->as<DictObject>(), "text", with_tag(part_text)));
    tagged = jinja::make_list(std::move(parts));
  } else {
    return invalid_argument("continue_final_message is set but the final message has no content to continue");
  }
  items.back() = jinja::make_dict(copy_with(last, "content", std::move(tagged)));
  messages = jinja::make_list(std::move(items));
  return ok_status();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    size_t at = 0;
    if (!jinja::is_space(jinja::next_code_point(text, at))) break;
    text.remove_prefix(at);
  }
  while (!text.empty()) {
    size_t begin = jinja::previous_boundary(text, text.size()), at = begin;
    if (!jinja::is_space(jinja::next_code_point(text, at))) break;
    text = text.substr(0, begin);
  }
  return text;
}

// Cuts the prompt behind the final message. Where the template trimmed the message, trailing space goes too.
Status cut_after_final_message(MarkedString& prompt, std::string_view message) {
  std::string_view short_tag = trimmed(kFinalMessageTag);
  size_t at = prompt.text().rfind(short_tag);
  while (at != std::string::npos && !prompt.trusted_at(at)) {
    at = at == 0 ? std::string::npos : prompt.text().rfind(short_tag, at - 1);
  }
  if (at == std::string::npos || prompt.text().find(trimmed(message)) == std::string::npos) {
    return invalid_argument(
        "continue_final_message is set but the final message does not appear in the prompt: the chat template drops or "
        "changes it");
  }
  bool spacing_kept = prompt.text().compare(at, kFinalMessageTag.size(), kFinalMessageTag) == 0;
  prompt.truncate(at);
  if (!spacing_kept) {
    std::string_view text = prompt.text();
    while (!text.empty()) {
      size_t begin = jinja::previous_boundary(text, text.size()), end = begin;
      if (!jinja::is_space(jinja::next_code_point(text, end))) break;
      text = text.substr(0, begin);
    }
    prompt.truncate(text.size());
  }
  return ok_status();
}

using Variables = std::vector<std::pair<std::string, Value>>;

void set_variable(Variables& variables, std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(std::string(name), std::move(value));
}

}  // namespace

struct ChatTemplate::Parts {
  jinja::Template main;
  std::optional<jinja::Template> tool_use;
  std::vector<std::pair<std::string, std::string>> special_tokens;  // variable name -> text
};

ChatValue::ChatValue() = default;
ChatValue::ChatValue(const Json& json) : value_(from_json(json_to_value(json))) {}
ChatValue::ChatValue(const nlohmann::ordered_json& json) : value_(from_json(json_to_value(json))) {}

Result<ChatValue> ChatValue::parse(std::string_view json_text, int max_depth) {
  ASSIGN_OR_RETURN(Value value, parse_json_value(json_text, max_depth));
  return ChatValue(std::make_shared<const Value>(std::move(value)));
}

ChatValue ChatValue::get(std::string_view key) const {
  if (absent() || !value_->is(Kind::kDict)) return ChatValue();
  const Value* member = value_->as<DictObject>().find(key);
  return member != nullptr ? ChatValue(std::make_shared<const Value>(*member)) : ChatValue();
}

Result<ChatTemplate> ChatTemplate::parse(std::string source, std::string_view name) {
  ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(std::move(source), name));
  return ChatTemplate(std::make_shared<const Parts>(Parts{std::move(parsed), std::nullopt, {}}));
}

Result<std::optional<ChatTemplate>> ChatTemplate::load(const std::string& model_dir) {
  ASSIGN_OR_RETURN(ChatTemplateFiles files, read_chat_template_files(model_dir));
  Result<std::optional<ChatTemplate>> made = make(std::move(files));
  if (!made.ok()) return made.status().with_prefix(model_dir);
  return made;
}

Result<std::optional<ChatTemplate>> ChatTemplate::make(ChatTemplateFiles files) {
  if (!files.main) return std::optional<ChatTemplate>();
  ASSIGN_OR_RETURN(jinja::Template main, jinja::Template::parse(files.main->text, files.main->name));
  std::optional<jinja::Template> tool_use;
  if (files.tool_use) {
    ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::parse(files.tool_use->text, files.tool_use->name));
    tool_use = std::move(parsed);
  }
  return std::optional<ChatTemplate>(ChatTemplate(
      std::make_shared<const Parts>(Parts{std::move(main), std::move(tool_use), std::move(files.special_tokens)})));
}

const std::string& ChatTemplate::source(bool with_tools) const {
  return with_tools && parts_->tool_use ? parts_->tool_use->source() : parts_->main.source();
}

Result<std::vector<Segment>> ChatTemplate::render(const ChatValue& messages, const RenderOptions& options) const {
  if (options.continue_final_message && options.add_generation_prompt) {
    return invalid_argument("continue_final_message and add_generation_prompt exclude each other");
  }
  if (messages.absent()) return invalid_argument("messages is missing; wanted an array");
  RETURN_IF_ERROR(check_input(messages, "messages", Kind::kList, "an array"));
  RETURN_IF_ERROR(check_input(options.tools, "tools", Kind::kList, "an array"));
  RETURN_IF_ERROR(check_input(options.documents, "documents", Kind::kList, "an array"));
  RETURN_IF_ERROR(check_input(options.extra, "chat_template_kwargs", Kind::kDict, "an object"));
  if (!messages.value()->is(Kind::kList)) return invalid_argument("messages is null; wanted an array");
  ASSIGN_OR_RETURN(Value prepared, prepare_messages(*messages.value()));
  std::string final_text;
  if (options.continue_final_message) RETURN_IF_ERROR(tag_final_message(prepared, final_text));

  bool with_tools = !options.tools.absent() && !options.tools.value()->is_none();
  auto value_or_none = [](const ChatValue& value) { return value.absent() ? Value() : *value.value(); };
  Variables variables;
  for (const auto& [name, text] : parts_->special_tokens) set_variable(variables, name, Value::string(text, true));
  if (options.bos_token) set_variable(variables, "bos_token", Value::string(*options.bos_token, true));
  if (options.eos_token) set_variable(variables, "eos_token", Value::string(*options.eos_token, true));
  if (!options.extra.absent() && options.extra.value()->is(Kind::kDict)) {
    for (const auto& [key, value] : options.extra.value()->as<DictObject>().items()) {
      set_variable(variables, key.as_text(), value);
    }
  }
  set_variable(variables, "messages", prepared);
  set_variable(variables, "tools", value_or_none(options.tools));
  set_variable(variables, "documents", value_or_none(options.documents));
  set_variable(variables, "add_generation_prompt", Value::boolean(options.add_generation_prompt));

  const jinja::Template& chosen = with_tools && parts_->tool_use ? *parts_->tool_use : parts_->main;
  int64_t now = options.now_unix_s.value_or(static_cast<int64_t>(std::time(nullptr)));
  ASSIGN_OR_RETURN(MarkedString prompt, chosen.render(variables, now));
  if (options.continue_final_message) RETURN_IF_ERROR(cut_after_final_message(prompt, final_text));
  return prompt.segments();
}

}  // namespace millrace
