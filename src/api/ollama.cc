// POST /api/chat and /api/generate: Ollama's API over the way of a chat. ollama_models.cc has its other endpoints.
#include <nlohmann/json.hpp>

#include "api/choices.h"
#include "api/grammar_fields.h"
#include "api/ollama_error.h"
#include "api/ollama_format.h"
#include "api/ollama_models.h"
#include "api/ollama_options.h"
#include "api/ollama_request.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/translated_chat.h"

namespace millrace::api {
namespace {

struct OllamaJob {
  CommonFields fields;
  OutputView view;
  std::vector<Prompt> prompts;
};

// A prompt that no template changes: completions read it likewise.
Result<OllamaJob> read_text_job(const OllamaRequest& ollama, const Json& body, const http::Request& request,
                                const ModelFacts& model) {
  ASSIGN_OR_RETURN(const Json chat, parse_json(ollama.chat));
  OllamaJob job;
  ASSIGN_OR_RETURN(job.fields, read_common(chat, ollama.chat, model, kOpenAiDialect));
  RETURN_IF_ERROR(read_rank(request, job.fields.request));
  RETURN_IF_ERROR(read_ollama_grammar(body, request.body, job.fields.sampling.params));
  job.prompts.emplace_back(TextPrompt{*ollama.text});
  return job;
}

Result<OllamaJob> read_chat_job(const OllamaRequest& ollama, const Json& body, const http::Request& request,
                                const ModelFacts& model) {
  MediaParts media(model.media);
  ASSIGN_OR_RETURN(TranslatedChat chat, read_translated_chat(ollama.chat, body, request, model,
                                                             {kOpenAiDialect, read_ollama_grammar}, media));
  OllamaJob job{std::move(chat.fields), chat.view, {}};
  job.prompts.emplace_back(std::move(chat.prompt));
  return job;
}

Status answer(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder,
              OllamaEndpoint endpoint) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  OllamaFormat::Shape shape{.endpoint = endpoint};
  ASSIGN_OR_RETURN(shape.model, read_ollama_model(context.names, body));
  const auto translate = endpoint == OllamaEndpoint::kChat ? translate_ollama_chat : translate_ollama_generate;
  ASSIGN_OR_RETURN(const OllamaRequest ollama, translate(body, request.body, model));
  if (ollama.empty) return responder->send({.body = OllamaFormat::loaded(shape)}), ok_status();
  auto read = ollama.text ? read_text_job(ollama, body, request, model) : read_chat_job(ollama, body, request, model);
  if (!read.ok()) return with_option_name(read.status(), body);
  OllamaJob job = std::move(read).value();
  wire::SamplingParams& sampling = job.fields.sampling.params;
  shape.logprobs = ollama.logprobs.has_value();
  if (ollama.logprobs) sampling.top_logprobs = *ollama.logprobs;
  RETURN_IF_ERROR(check_logprob_volume(sampling, job.fields.sampling.max_tokens, 1, model));
  const ReplyOptions options{.stream = ollama.stream, .token_events = shape.logprobs};
  auto format = std::make_unique<OllamaFormat>(context.engine, std::move(shape), job.view);
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  const std::string id = job.fields.rid.empty() ? make_id("ollama-") : job.fields.rid;
  reply->start(make_requests(std::move(job.prompts), {&job.fields.sampling, 1}, job.fields.request, 1), {{id, 0, 1}});
  return ok_status();
}

void add_answer_route(ApiContext& context, const char* path, OllamaEndpoint endpoint) {
  add_ollama_route(context, {.method = "POST", .pattern = path}, endpoint,
                   [endpoint](ApiContext& api, const http::Request& request, const http::ResponderPtr& responder) {
                     return answer(api, request, responder, endpoint);
                   });
}

}  // namespace

void add_ollama_routes(ApiContext& context) {
  add_answer_route(context, "/api/chat", OllamaEndpoint::kChat);
  add_answer_route(context, "/api/generate", OllamaEndpoint::kGenerate);
  add_ollama_model_routes(context);
}

}  // namespace millrace::api
