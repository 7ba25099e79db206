// POST /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "api/allowed_tools.h"
#include "api/chat_format.h"
#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fetching_route.h"
#include "api/fields.h"
#include "api/logprobs.h"
#include "api/prompt_forms.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/speech_fields.h"
#include "api/tool_fields.h"
#include "api/transfer_fields.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

struct ChatJob {
  CommonFields fields;
  std::string name, id;  // of the model, as the client calls it, and of the answer
  bool logprobs = false;
  OutputView view;
  std::optional<ChatSpeech> speech;
};

// `ids`: of the prompt, where they are shown.
void start(ApiContext& context, const http::ResponderPtr& responder, const ChatJob& job, std::vector<Prompt> prompts,
           PromptIds ids) {
  const CommonFields& fields = job.fields;
  const auto n = static_cast<std::size_t>(fields.sampling.n);
  ShownDetails shown{job.logprobs,
                     fields.tokens_as_ids,
                     fields.token_ids,
                     fields.prompt_logprobs,
                     fields.top_logprobs,
                     std::move(ids),
                     n};
  ReplyOptions options{fields.stream, fields.include_usage, fields.continuous_usage};
  options.metadata = true;
  options.token_events = shown.logprobs || shown.token_ids;
  options.choices_per_prompt = n;
  std::string head =
      openai_head(fields.stream ? "chat.completion.chunk" : "chat.completion", job.id, job.name, context.version);
  std::optional<ChatAudio> audio;
  if (job.speech) audio.emplace(*job.speech, *context.engine.model().speech, context.state->spoken);
  auto format =
      std::make_unique<ChatFormat>(context.engine, std::move(head), std::move(shown), job.view, std::move(audio));
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  auto requests = make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, n);
  if (job.speech) speak(job.speech->request, requests.front());
  reply->start(std::move(requests), {{job.id, 0, n}});
}

// `text`: `body` as JSON, which need not be that of `request`.
Status answer(ApiContext& context, const http::Request& request, const Json& body, const std::string& text,
              const http::ResponderPtr& responder, MediaUrls& urls) {
  const ModelFacts& model = context.engine.model();
  auto job = std::make_shared<ChatJob>();
  ASSIGN_OR_RETURN(job->name, context.names.read(body));
  ASSIGN_OR_RETURN(job->fields, read_common(body, text, model, kOpenAiDialect));
  CommonFields& fields = job->fields;
  RETURN_IF_ERROR(read_rank(request, fields.request));
  RETURN_IF_ERROR(refuse_unless(body, "best_of", 1));
  RETURN_IF_ERROR(refuse_unless(body, "echo", false));
  RETURN_IF_ERROR(refuse_unless(body, "add_special_tokens", false));  // the template writes them
  ASSIGN_OR_RETURN(const std::optional<int32_t> top_logprobs, read_chat_logprobs(body));
  if (top_logprobs) fields.sampling.params.top_logprobs = *top_logprobs;
  ASSIGN_OR_RETURN(job->view, read_output_fields(body, text, model, fields.sampling.params));
  job->logprobs = fields.sampling.params.top_logprobs >= 0;
  ASSIGN_OR_RETURN(job->speech, read_chat_speech(body, model, fields.stream));
  if (job->speech) RETURN_IF_ERROR(check_chat_speech(body, fields));
  RETURN_IF_ERROR(read_prompt_logprobs(body, fields));
  const auto n = static_cast<std::size_t>(fields.sampling.n);
  RETURN_IF_ERROR(check_prompt_volume(text.size(), n, "n"));
  RETURN_IF_ERROR(check_kv_transfer(fields.request.remote_kv, n));
  RETURN_IF_ERROR(check_logprob_volume(fields.sampling.params, fields.sampling.max_tokens, n, model));
  MediaParts media(model.media, MediaDialect::kChat, &urls);
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, text, media, model.tool_history, &context.state->spoken));
  const bool reasons = model.reasoning_dialect != wire::ReasoningDialect::kNone;
  if (reasons && (forces_call(body) || job->speech)) close_reasoning(body, prompt);
  if (job->speech) {  // all of its text is spoken, so all of it is shown
    fields.sampling.params.parsing.reset();
    job->view = {};
  }
  job->id = fields.rid.empty() ? make_id("chatcmpl-") : fields.rid;
  if (prompt.media != nullptr && fields.wants_ids()) {
    return error(StatusCode::kUnsupported,
                 "return_token_ids, prompt_logprobs or truncate_prompt_tokens is set for a "
                 "prompt with pictures or audio; leave them out");
  }
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(prompt));
  if (!fields.wants_ids()) return start(context, responder, *job, std::move(prompts), {}), ok_status();
  with_prompt_ids(context, responder, std::move(prompts), fields.truncate, [&context, responder, job](PromptIds ids) {
    std::vector<Prompt> computed = prompts_of(ids);
    start(context, responder, *job, std::move(computed), std::move(ids));
  });
  return ok_status();
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, MediaUrls& urls) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(const std::optional<std::string> resolved, resolve_allowed_tools(body, request.body));
  if (!resolved) return answer(context, request, body, request.body, responder, urls);
  ASSIGN_OR_RETURN(const Json with_allowed, parse_body(*resolved));
  return answer(context, request, with_allowed, *resolved, responder, urls);
}

}  // namespace

void add_chat_routes(ApiContext& context) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) add_fetching_route(context, path, handle);
}

}  // namespace millrace::api
