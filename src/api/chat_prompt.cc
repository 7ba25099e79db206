#include "api/chat_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/content_blocks.h"
#include "api/media_parts.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "api/tool_history.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

Status check_role(const Json& message, const std::string& where) {
  const Json* role = json_find(message, "role");
  if (!role)
    return invalid_argument("{}.role is missing; wanted one of system, developer, user, assistant, tool", where);
  if (!role->is_string())
    return invalid_argument("{}.role is of type {}; wanted a string", where, json_type_name(*role));
  const auto& name = role->get_ref<const std::string&>();
  for (std::string_view known : kRoles) {
    if (name == known) return ok_status();
  }
  return invalid_argument("{}.role is '{}'; wanted one of system, developer, user, assistant, tool", where,
                          name.substr(0, 64));
}

// An array of parts becomes one text, each on a line, as in vLLM and llama.cpp: templates of text models know strings
// only.
Result<std::string> join_parts(const Json& parts, const std::string& where) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part_name = fmt::format("{}.content[{}]", where, i);
    const Json& part = parts[i];
    if (!part.is_object())
      return invalid_argument("{} is of type {}; wanted an object", part_name, json_type_name(part));
    std::string type;
    RETURN_IF_ERROR(json_read(part, "type", type).with_prefix(part_name));
    if (type != "text") {
      return invalid_argument("{}.type is '{}'; wanted 'text': this model takes text only", part_name,
                              type.substr(0, 64));
    }
    const Json* value = json_find(part, "text");
    if (!value || !value->is_string()) return invalid_argument("{}.text is no string; wanted one", part_name);
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

// Templates of multimodal models take the parts as they are, pictures and audio taken out.
Status take_media(Json& parts, const std::string& where, MediaParts& media) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part_name = fmt::format("{}.content[{}]", where, i);
    Json& part = parts[i];
    if (!part.is_object()) {
      return invalid_argument("{} is of type {}; wanted an object", part_name, json_type_name(part));
    }
    std::string type;
    RETURN_IF_ERROR(json_read(part, "type", type).with_prefix(part_name));
    if (media.is_stand_in(type)) continue;
    if (type != "text") {
      ASSIGN_OR_RETURN(type, media.take(part, type, part_name, {"text"}));
      part = {{"type", type}};
      continue;
    }
    const Json* value = json_find(part, "text");
    if (!value || !value->is_string()) return invalid_argument("{}.text is no string; wanted one", part_name);
    part = {{"type", "text"}, {"text", *value}};
  }
  return ok_status();
}

// The earlier turns that a conversation names by their audio. One of a few bytes can name the same megabytes often.
struct NamedTurns {
  const SpokenTurns* turns;  // null: there are none
  std::size_t bytes = 0;     // of their transcripts, so far
};

// An earlier turn that was spoken: its transcript, where the message has no text of its own.
Status take_spoken_turn(Json& message, const std::string& where, NamedTurns& named) {
  const Json* audio = json_find(message, "audio");
  if (!audio) return ok_status();
  if (message["role"] != "assistant") {
    return invalid_argument("{}.audio is set with the role {}; wanted assistant", where, message["role"].dump());
  }
  if (!audio->is_object()) return wrong_type(where + ".audio", *audio, "an object");
  ASSIGN_OR_RETURN(const std::string id, read_block_string(*audio, "id", where + ".audio"));
  std::optional<std::string> transcript;
  if (named.turns) transcript = named.turns->find(id, unix_seconds());
  if (!transcript) {
    return invalid_argument(
        "{}.audio.id is '{}', which is unknown or expired; wanted the id of an answer that this server spoke in the "
        "last {} s, or its transcript as content instead",
        where, id.substr(0, kShownBytes), kSpokenTurnSeconds);
  }
  const Json* content = json_find(message, "content");
  if (content && *content != "") return ok_status();
  named.bytes += transcript->size();
  if (named.bytes > kMaxNamedTurnsBytes) {
    return invalid_argument("{}.audio.id is one of earlier answers with over {} bytes of transcripts; wanted fewer",
                            where, kMaxNamedTurnsBytes);
  }
  message["content"] = std::move(*transcript);
  return ok_status();
}

// The assistant's refusals are texts of its turn, as at /v1/responses: a part of its content, or a member beside none.
Status take_refusals(Json& message, const std::string& where, bool& changed) {
  if (message["role"] != "assistant") return ok_status();
  if (json_find(message, "content") == nullptr) {
    std::string refusal;
    RETURN_IF_ERROR(json_read(message, "refusal", refusal).with_prefix(where));
    if (refusal.empty()) return ok_status();
    message["content"] = std::move(refusal);
    changed = true;
    return ok_status();
  }
  Json& content = message["content"];
  for (std::size_t i = 0; content.is_array() && i < content.size(); ++i) {
    Json& part = content[i];
    const Json* type = part.is_object() ? json_find(part, "type") : nullptr;
    if (type == nullptr || *type != "refusal") continue;
    ASSIGN_OR_RETURN(std::string text, read_block_string(part, "refusal", fmt::format("{}.content[{}]", where, i)));
    part = {{"type", "text"}, {"text", std::move(text)}};
    changed = true;
  }
  return ok_status();
}

// Checks one message; flattens its content in place where it is an array of parts and the model takes text only.
Status normalize_message(Json& message, const std::string& where, MediaParts& media, NamedTurns& named, bool& changed) {
  if (!message.is_object())
    return invalid_argument("{} is of type {}; wanted an object", where, json_type_name(message));
  RETURN_IF_ERROR(check_role(message, where));
  RETURN_IF_ERROR(take_spoken_turn(message, where, named));
  changed |= message.erase("audio") > 0;
  RETURN_IF_ERROR(take_refusals(message, where, changed));
  const Json* content = json_find(message, "content");
  if (!content) {
    if (message["role"] != "assistant") return invalid_argument("{}.content is missing; wanted a string", where);
    // Every SDK sends null beside tool calls, and templates add and trim what they find.
    message["content"] = "";
    changed = true;
    return ok_status();
  }
  if (content->is_string()) return ok_status();
  if (!content->is_array()) {
    return invalid_argument("{}.content is of type {}; wanted a string or an array of parts", where,
                            json_type_name(*content));
  }
  if (media.facts().any()) {
    changed = true;
    return take_media(message["content"], where, media);
  }
  ASSIGN_OR_RETURN(std::string text, join_parts(*content, where));
  message["content"] = std::move(text);
  changed = true;
  return ok_status();
}

// A name of OpenAI's models for what others call system. Most templates leave its message out or refuse it.
void rename_developer(Json& message, const ToolHistoryForm& form, bool& changed) {
  if (form.developer_role || message["role"] != "developer") return;
  message["role"] = "system";
  changed = true;
}

// The messages with the changed roles and contents and the calls as the template wants them, the keys in the client's
// sequence.
Result<ChatValue> rewritten(const Json& messages, const std::string& text, const ToolHistoryForm& form) {
  nlohmann::ordered_json out = std::move(parse_ordered_json(text)["messages"]);
  ValueCount parsed;  // in all tool calls
  for (std::size_t i = 0; i < messages.size(); ++i) {
    nlohmann::ordered_json content = messages[i]["content"];
    if (out[i]["content"] != content) out[i]["content"] = std::move(content);
    out[i]["role"] = messages[i]["role"].get<std::string>();
    out[i].erase("audio");
    RETURN_IF_ERROR(rewrite_tool_history(out[i], fmt::format("messages[{}]", i), form, parsed));
  }
  return ChatValue(out);
}

// Fields that are variables of the template, as in vLLM and others; chat_template_kwargs may have them already. The
// effort "none" also turns off what can be turned off.
Status read_variables(const Json& body, ChatPrompt& prompt) {
  const Json* extra = json_find(body, "chat_template_kwargs");
  Json variables = extra ? *extra : Json::object();
  bool added = false;
  for (const auto& [name, type] :
       {std::pair("reasoning_effort", Json::value_t::string), std::pair("enable_thinking", Json::value_t::boolean)}) {
    const Json* value = json_find(body, name);
    if (!value) continue;
    if (value->type() != type) {
      return invalid_argument("{} is of type {}; wanted a {}", name, json_type_name(*value),
                              json_type_name(Json(type)));
    }
    if (variables.contains(name)) continue;
    variables[name] = *value;
    added = true;
  }
  if (const Json* effort = json_find(body, "reasoning_effort")) {
    RETURN_IF_ERROR(check_effort(effort->get_ref<const std::string&>(), "reasoning_effort"));
    if (variables["reasoning_effort"] == "none" && !variables.contains("enable_thinking")) {
      variables["enable_thinking"] = false;
      added = true;
    }
  }
  if (added) prompt.template_kwargs = ChatValue(variables);
  return ok_status();
}

}  // namespace

Status check_effort(std::string_view effort, std::string_view name) {
  if (std::ranges::find(kEfforts, effort) != std::end(kEfforts)) return ok_status();
  return invalid_argument("{} is '{}'; wanted none, minimal, low, medium, high, xhigh or max", name,
                          effort.substr(0, kShownBytes));
}

void close_reasoning(const Json& body, ChatPrompt& prompt) {
  const Json* extra = json_find(body, "chat_template_kwargs");
  if (json_find(body, "enable_thinking") || (extra && extra->contains("enable_thinking"))) return;
  Json variables = extra ? *extra : Json::object();
  if (const Json* effort = json_find(body, "reasoning_effort"); effort && !variables.contains("reasoning_effort")) {
    variables["reasoning_effort"] = *effort;
  }
  variables["enable_thinking"] = false;
  prompt.template_kwargs = ChatValue(variables);
}

Result<ChatPrompt> read_chat_prompt(const Json& body, const std::string& text, MediaParts& media,
                                    const ToolHistoryForm& form, const SpokenTurns* spoken) {
  const Json* given = json_find(body, "messages");
  if (!given) return invalid_argument("messages is missing; wanted an array of messages");
  if (!given->is_array()) return invalid_argument("messages is of type {}; wanted an array", json_type_name(*given));
  if (given->empty() || given->size() > kMaxMessages) {
    return invalid_argument("messages has {} entries; wanted 1 to {}", given->size(), kMaxMessages);
  }
  Json messages = *given;
  bool changed = false;
  NamedTurns named{spoken};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    RETURN_IF_ERROR(normalize_message(messages[i], fmt::format("messages[{}]", i), media, named, changed));
    rename_developer(messages[i], form, changed);
  }
  ChatPrompt prompt;
  prompt.media_tokens = MediaTokens(media.facts());
  prompt.source_bytes = text.size() + named.bytes;
  ASSIGN_OR_RETURN(const ChatValue original, ChatValue::parse(text));
  if (changed || has_tool_history(messages)) {
    ASSIGN_OR_RETURN(prompt.messages, rewritten(messages, text, form));
  } else {
    prompt.messages = original.get("messages");
  }
  if (const Json* tools = json_find(body, "tools")) {
    if (!tools->is_array()) return invalid_argument("tools is of type {}; wanted an array", json_type_name(*tools));
    if (!tools->empty()) prompt.tools = original.get("tools");
  }
  if (const Json* extra = json_find(body, "chat_template_kwargs")) {
    if (!extra->is_object()) {
      return invalid_argument("chat_template_kwargs is of type {}; wanted an object", json_type_name(*extra));
    }
    // Variables that the server sets itself must not be replaced by a request.
    for (const char* name :
         {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "chat_template"}) {
      if (extra->contains(name)) return invalid_argument("chat_template_kwargs has {}; wanted other names only", name);
    }
    prompt.template_kwargs = original.get("chat_template_kwargs");
  }
  RETURN_IF_ERROR(read_variables(body, prompt));
  RETURN_IF_ERROR(json_read(body, "continue_final_message", prompt.continue_final_message));
  prompt.add_generation_prompt = !prompt.continue_final_message;
  RETURN_IF_ERROR(json_read(body, "add_generation_prompt", prompt.add_generation_prompt));
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    return invalid_argument("continue_final_message is true and add_generation_prompt too; wanted one of them");
  }
  ASSIGN_OR_RETURN(prompt.media, std::move(media).list());
  return prompt;
}

}  // namespace millrace::api
