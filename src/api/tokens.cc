// POST /tokenize and /detokenize (and the same under /v1).
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/fields.h"
#include "api/prompts.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

void append_ids(std::string& out, const std::vector<int32_t>& ids) {
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i) out += ',';
    out += std::to_string(ids[i]);
  }
  out += ']';
}

// One prompt: a text or a conversation.
Result<Prompt> read_tokenize_prompt(const Json& body, const std::string& text) {
  const bool has_messages = json_find(body, "messages") != nullptr;
  if (has_messages == (json_find(body, "prompt") != nullptr)) {
    return invalid_argument("prompt and messages are {}; wanted exactly one of them",
                            has_messages ? "both given" : "both missing");
  }
  if (has_messages) {
    ASSIGN_OR_RETURN(ChatPrompt chat, read_chat_prompt(body, text));
    return Prompt(std::move(chat));
  }
  const Json& prompt = *json_find(body, "prompt");
  if (!prompt.is_string()) return invalid_argument("prompt is of type {}; wanted a string", json_type_name(prompt));
  TextPrompt out{prompt.get<std::string>()};
  RETURN_IF_ERROR(json_read(body, "add_special_tokens", out.add_special_tokens));
  return Prompt(std::move(out));
}

Status tokenize(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  RETURN_IF_ERROR(context.names.read(body).status());
  ASSIGN_OR_RETURN(Prompt prompt, read_tokenize_prompt(body, request.body));
  context.engine.tokenize(
      std::move(prompt), [responder, context_length = model.context_length](Result<TokenizeReply> reply) {
        if (!reply.ok()) return static_cast<void>(responder->send(error_response(from_status(reply.status()))));
        std::string out = "{\"tokens\":";
        append_ids(out, reply->ids);
        out += fmt::format(",\"count\":{},\"max_model_len\":{}}}", reply->ids.size(), context_length);
        responder->send({.body = std::move(out)});
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
