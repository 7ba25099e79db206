// llama.cpp's own endpoints: POST /completion, POST /apply-template and GET /props. Its /tokenize and /detokenize are
// in tokens.cc, its OpenAI ones in chat.cc and completions.cc.
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/llama_fields.h"
#include "api/llama_format.h"
#include "api/prompt_forms.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

Status complete(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  LlamaFormat::Shape shape;
  ASSIGN_OR_RETURN(shape.model, context.names.read(body));
  ASSIGN_OR_RETURN(LlamaFields fields, read_llama_fields(body, request.body, model));
  CommonFields& common = fields.common;
  RETURN_IF_ERROR(read_rank(request, common.request));
  const std::size_t count = fields.prompts.size();
  RETURN_IF_ERROR(check_logprob_volume(common.sampling.params, common.sampling.max_tokens, count, model));
  shape.settings = llama_settings(common.sampling, model);
  shape.list = fields.list;
  shape.tokens = common.stream || fields.return_tokens;
  shape.probabilities = fields.n_probs > 0;
  const ReplyOptions options{.stream = common.stream, .token_events = shape.tokens || shape.probabilities};
  const std::string id = common.rid.empty() ? make_id("cmpl-") : common.rid;
  auto format = std::make_unique<LlamaFormat>(context.engine, std::move(shape));
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  reply->start(make_requests(std::move(fields.prompts), {&common.sampling, 1}, common.request, 1), {{id, 0, count}});
  return ok_status();
}

// The prompt that the same messages have at /v1/chat/completions, as a text for /completion.
Status apply_template(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  RETURN_IF_ERROR(context.names.read(body).status());
  RETURN_IF_ERROR(refuse_unserved(body));
  MediaParts media(model.media);
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, request.body, media, model.tool_history));
  if (prompt.media != nullptr) {
    return error(StatusCode::kUnsupported, "messages has pictures or audio, which are no text; wanted text alone");
  }
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(prompt));
  const auto send = [responder](std::vector<std::string> texts) {
    std::string out = "{\"prompt\":";
    json_append_string(out, texts.front());
    responder->send({.body = out + "}"});
  };
  with_prompt_ids(context, responder, std::move(prompts), std::nullopt, [&context, responder, send](PromptIds ids) {
    with_prompt_texts(context, responder, prompts_of(ids), false, send);
  });
  return ok_status();
}

Status props(ApiContext& context, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  const ModelFacts& model = context.engine.model();
  ASSIGN_OR_RETURN(const SamplingFields defaults, read_sampling(Json::object(), model, kOpenAiDialect));
  std::string out = fmt::format("{{\"default_generation_settings\":{{\"n_ctx\":{},\"params\":{}}},\"model_alias\":",
                                model.context_length, llama_settings(defaults, model));
  json_append_string(out, context.names.names.front());
  out += ",\"model_path\":";
  json_append_string(out, model.path);
  out += ",\"chat_template\":";
  json_append_string(out, model.chat_template);
  out += fmt::format(",\"modalities\":{{\"vision\":{},\"audio\":{}}},\"build_info\":", model.media.pictures.has_value(),
                     model.media.audio.has_value());
  json_append_string(out, "millrace-" + context.version);
  responder->send({.body = out + "}"});
  return ok_status();
}

}  // namespace

void add_llama_routes(ApiContext& context) {
  add_post_route(context, "/completion", complete);
  add_post_route(context, "/apply-template", apply_template);
  add_fallible_route(context, "GET", "/props", props, http::Access::kUser);
}

}  // namespace millrace::api
