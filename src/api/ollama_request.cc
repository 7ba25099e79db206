#include "api/ollama_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "api/content_blocks.h"
#include "api/ollama_history.h"
#include "api/ollama_options.h"
#include "api/sampling_fields.h"
#include "api/translated_chat.h"
#include "api/unserved_fields.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kThinkLevels[] = {"low", "medium", "high"};

// A switch, or how much; what the template makes of it is its own.
Status translate_think(const Json& body, const ModelFacts& model, OrderedJson& chat) {
  const Json* think = json_find(body, "think");
  if (!think) return ok_status();
  const std::string named = think->is_string() ? think->get<std::string>() : "";
  const bool level = std::ranges::find(kThinkLevels, named) != std::end(kThinkLevels);
  if (!level && !think->is_boolean()) {
    return invalid_argument("think is {}; wanted true, false, \"low\", \"medium\" or \"high\"",
                            think->dump().substr(0, kShownBytes));
  }
  if (*think == false) {
    chat["enable_thinking"] = false;
    return ok_status();
  }
  if (model.reasoning_dialect == wire::ReasoningDialect::kNone) {
    return error(StatusCode::kUnsupported,
                 "think is {}; wanted false or nothing: the model '{}' does not support thinking", think->dump(),
                 model.name);
  }
  chat["enable_thinking"] = true;
  if (level) chat["reasoning_effort"] = named;
  return ok_status();
}

// What both endpoints have.
Status translate_common(const Json& body, const OrderedJson& ordered, const ModelFacts& model, OrderedJson& chat,
                        OllamaRequest& out) {
  RETURN_IF_ERROR(refuse_unserved_ollama(body));
  RETURN_IF_ERROR(json_read(body, "stream", out.stream));
  ASSIGN_OR_RETURN(out.logprobs, read_chat_logprobs(body));
  copy_server_fields(ordered, chat);
  RETURN_IF_ERROR(translate_ollama_options(body, ordered, chat));
  return translate_think(body, model, chat);
}

// The prompt is the user's message, where the model has a template and the client did not fill it in itself.
Status translate_prompt(const Json& body, const OrderedJson& ordered, const ModelFacts& model, OrderedJson& chat,
                        OllamaRequest& out) {
  std::string prompt, system;
  bool raw = false;
  RETURN_IF_ERROR(json_read(body, "prompt", prompt));
  RETURN_IF_ERROR(json_read(body, "system", system));
  RETURN_IF_ERROR(json_read(body, "raw", raw));
  const Json* images = json_find(body, "images");
  const bool has_images = images && !(images->is_array() && images->empty());
  out.empty = prompt.empty() && !has_images;
  if (raw || !model.has_chat_template) {
    const std::string why = raw ? "raw is true" : fmt::format("the model '{}' has no chat template", model.name);
    if (!system.empty()) return invalid_argument("system is set, and {}; wanted no system", why);
    if (has_images) return invalid_argument("images is set, and {}; wanted no images", why);
    if (chat.value("enable_thinking", false)) return invalid_argument("think is set, and {}; wanted no think", why);
    out.text = std::move(prompt);
    return ok_status();
  }
  OrderedJson messages = OrderedJson::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  ASSIGN_OR_RETURN(OrderedJson content,
                   ollama_content(prompt, has_images ? &ordered.at("images") : nullptr, "images", model));
  messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  chat["messages"] = std::move(messages);
  return ok_status();
}

}  // namespace

Result<OllamaRequest> translate_ollama_chat(const Json& body, const std::string& text, const ModelFacts& model) {
  const auto ordered = parse_ordered_json(text);
  OrderedJson chat = OrderedJson::object();
  OllamaRequest out;
  RETURN_IF_ERROR(translate_common(body, ordered, model, chat, out));
  const Json* messages = json_find(body, "messages");
  out.empty = !messages || (messages->is_array() && messages->empty());
  if (!out.empty) RETURN_IF_ERROR(translate_ollama_messages(ordered.at("messages"), model, chat));
  for (const char* key : {"tools", "tool_choice", "parallel_tool_calls"}) copy_field(ordered, key, chat);
  out.chat = chat.dump();
  return out;
}

Result<OllamaRequest> translate_ollama_generate(const Json& body, const std::string& text, const ModelFacts& model) {
  const auto ordered = parse_ordered_json(text);
  OrderedJson chat = OrderedJson::object();
  OllamaRequest out;
  RETURN_IF_ERROR(translate_common(body, ordered, model, chat, out));
  RETURN_IF_ERROR(translate_prompt(body, ordered, model, chat, out));
  out.chat = chat.dump();
  return out;
}

}  // namespace millrace::api
