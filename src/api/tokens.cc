// POST /tokenize and /detokenize (and the same under /v1).
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/fields.h"
#include "api/prompt_forms.h"
#include "api/prompts.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

// One text, a list of them (`list`), or a conversation.
Result<std::vector<Prompt>> read_tokenize_prompts(const ApiContext& context, const Json& body, const std::string& text,
                                                  bool& list) {
  const bool has_messages = json_find(body, "messages") != nullptr;
  if (has_messages == (json_find(body, "prompt") != nullptr)) {
    return invalid_argument("prompt and messages are {}; wanted exactly one of them",
                            has_messages ? "both given" : "both missing");
  }
  std::vector<Prompt> out;
  if (has_messages) {
    const ModelFacts& model = context.engine.model();
    ASSIGN_OR_RETURN(ChatPrompt chat,
                     read_chat_prompt(body, text, model.tool_history, model.media, &context.state->spoken));
    out.emplace_back(std::move(chat));
    return out;
  }
  bool add_special_tokens = true;
  RETURN_IF_ERROR(json_read(body, "add_special_tokens", add_special_tokens));
  const Json& prompt = *json_find(body, "prompt");
  list = prompt.is_array();
  if (list && (prompt.empty() || prompt.size() > kMaxPrompts)) {
    return invalid_argument("prompt has {} texts; wanted 1 to {}", prompt.size(), kMaxPrompts);
  }
  for (std::size_t i = 0; i < (list ? prompt.size() : 1); ++i) {
    const Json& one = list ? prompt[i] : prompt;
    if (!one.is_string()) {
      return invalid_argument("prompt{} is of type {}; wanted a string{}", list ? fmt::format("[{}]", i) : "",
                              json_type_name(one), list ? "" : " or a list of them");
    }
    out.emplace_back(TextPrompt{one.get<std::string>(), add_special_tokens});
  }
  return out;
}

// {"tokens": [1, 2], "count": 2, ...}; of a list of texts a list of each.
std::string tokenize_body(const PromptIds& ids, bool list, int32_t context_length) {
  std::string tokens, counts;
  for (const std::vector<int32_t>& one : ids) {
    if (!counts.empty()) tokens += ',', counts += ',';
    append_ids(tokens, one);
    append_integer(counts, static_cast<int64_t>(one.size()));
  }
  if (list) tokens = '[' + tokens + ']', counts = '[' + counts + ']';
  return fmt::format(R"({{"tokens":{},"count":{},"max_model_len":{}}})", tokens, counts, context_length);
}

Status tokenize(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  RETURN_IF_ERROR(context.names.read(body).status());
  RETURN_IF_ERROR(refuse_unserved_tokenize(body));
  bool list = false;
  ASSIGN_OR_RETURN(std::vector<Prompt> prompts, read_tokenize_prompts(context, body, request.body, list));
  with_prompt_ids(context, responder, std::move(prompts), std::nullopt,
                  [responder, list, context_length = context.engine.model().context_length](const PromptIds& ids) {
                    responder->send({.body = tokenize_body(ids, list, context_length)});
                  });
  return ok_status();
}

Status detokenize(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  RETURN_IF_ERROR(context.names.read(body).status());
  const Json* tokens = json_find(body, "tokens");
  if (!tokens) return invalid_argument("tokens is missing; wanted an array of token ids");
  std::vector<int32_t> ids;  // none: an empty text
  if (!tokens->is_array() || !tokens->empty()) {
    ASSIGN_OR_RETURN(ids, read_ids(*tokens, "tokens", model.vocab_size));
  }
  bool skip_special_tokens = true;
  RETURN_IF_ERROR(json_read(body, "skip_special_tokens", skip_special_tokens));
  context.engine.detokenize(std::move(ids), skip_special_tokens, [responder](Result<std::string> text) {
    if (!text.ok()) return static_cast<void>(responder->send(error_response(from_status(text.status()))));
    std::string out = "{\"text\":";
    json_append_string(out, *text);
    responder->send({.body = out + "}"});
  });
  return ok_status();
}

}  // namespace

void add_token_routes(ApiContext& context) {
  for (const char* prefix : {"", "/v1"}) {
    add_post_route(context, std::string(prefix) + "/tokenize", tokenize);
    add_post_route(context, std::string(prefix) + "/detokenize", detokenize);
  }
}

}  // namespace millrace::api
