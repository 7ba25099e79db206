// POST /tokenize and /detokenize (and the same under /v1).
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/fetching_route.h"
#include "api/fields.h"
#include "api/prompt_forms.h"
#include "api/prompts.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "api/unserved_fields.h"
#include "base/utf8.h"

namespace millrace::api {
namespace {

// One text, a list of them (`list`), or a conversation.
Result<std::vector<Prompt>> read_tokenize_prompts(const ApiContext& context, const Json& body, const std::string& text,
                                                  MediaUrls& urls, bool& list) {
  std::vector<Prompt> out;
  const bool has_messages = json_find(body, "messages") != nullptr;
  const Json* content = json_find(body, "content");
  const int given = (json_find(body, "prompt") != nullptr) + has_messages + (content != nullptr);
  if (given != 1) {
    return invalid_argument("{} of prompt, messages and content are given; wanted exactly one of them",
                            given == 0 ? "none" : "several");
  }
  bool add_special = false;  // of llama.cpp, whose clients ask with `content`
  RETURN_IF_ERROR(json_read(body, "add_special", add_special));
  if (content) {
    if (!content->is_string()) {
      return invalid_argument("content is of type {}; wanted a string", json_type_name(*content));
    }
    out.emplace_back(TextPrompt{content->get<std::string>(), add_special});
    return out;
  }
  if (has_messages) {
    const ModelFacts& model = context.engine.model();
    MediaParts media(model.media, MediaDialect::kChat, &urls);
    ASSIGN_OR_RETURN(ChatPrompt chat, read_chat_prompt(body, text, media, model.tool_history, &context.state->spoken));
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

// [{"id":1,"piece":"a"}]; a part of a character is a list of its bytes.
std::string tokens_with_text(const Engine& engine, const std::vector<int32_t>& ids) {
  std::string out = "[";
  for (const int32_t id : ids) {
    fmt::format_to(std::back_inserter(out), "{}{{\"id\":{},\"piece\":", out.size() > 1 ? "," : "", id);
    const std::string bytes = engine.token_bytes(id);
    if (utf8_find_invalid(bytes) == std::string::npos) {
      json_append_string(out, bytes);
    } else {
      append_ids(out, std::vector<int32_t>(reinterpret_cast<const unsigned char*>(bytes.data()),
                                           reinterpret_cast<const unsigned char*>(bytes.data()) + bytes.size()));
    }
    out += '}';
  }
  return out + "]";
}

// {"tokens": [1, 2], "count": 2, ...}; of a list of texts a list of each.
std::string tokenize_body(const Engine& engine, const PromptIds& ids, bool list, bool with_text) {
  std::string tokens, counts;
  for (const std::vector<int32_t>& one : ids) {
    if (!counts.empty()) tokens += ',', counts += ',';
    with_text ? static_cast<void>(tokens += tokens_with_text(engine, one)) : append_ids(tokens, one);
    append_integer(counts, static_cast<int64_t>(one.size()));
  }
  if (list) tokens = '[' + tokens + ']', counts = '[' + counts + ']';
  return fmt::format(R"({{"tokens":{},"count":{},"max_model_len":{}}})", tokens, counts, engine.model().context_length);
}

Status tokenize(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder,
                MediaUrls& urls) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  RETURN_IF_ERROR(context.names.read(body).status());
  RETURN_IF_ERROR(refuse_unserved_tokenize(body));
  bool list = false, with_text = false;
  RETURN_IF_ERROR(json_read(body, "with_pieces", with_text));
  ASSIGN_OR_RETURN(std::vector<Prompt> prompts, read_tokenize_prompts(context, body, request.body, urls, list));
  with_prompt_ids(context, responder, std::move(prompts), std::nullopt,
                  [&context, responder, list, with_text](const PromptIds& ids) {
                    responder->send({.body = tokenize_body(context.engine, ids, list, with_text)});
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
    std::string shown;
    json_append_string(shown, *text);
    responder->send({.body = fmt::format(R"({{"text":{0},"content":{0},"prompt":{0}}})", shown)});
  });
  return ok_status();
}

}  // namespace

void add_token_routes(ApiContext& context) {
  for (const char* prefix : {"", "/v1"}) {
    add_fetching_route(context, std::string(prefix) + "/tokenize", tokenize);
    add_post_route(context, std::string(prefix) + "/detokenize", detokenize);
  }
}

}  // namespace millrace::api
