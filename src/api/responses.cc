// POST /v1/responses and /v1/responses/input_tokens: OpenAI's Responses API over the way of a chat. The routes of
// stored responses are in stored_responses.cc.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "api/choices.h"
#include "api/fetching_route.h"
#include "api/fields.h"
#include "api/grammar_fields.h"
#include "api/reply.h"
#include "api/responses_format.h"
#include "api/responses_request.h"
#include "api/routes.h"
#include "api/stored_input.h"
#include "api/translated_chat.h"

namespace millrace::api {
namespace {

// Logprobs are of tokens, and what a token becomes in a parsed output is not known.
Status read_shown_logprobs(const ResponsesBody& translated, const OutputView& view, const ModelFacts& model,
                           SamplingFields& sampling) {
  if (!translated.top_logprobs) return ok_status();
  if (view.parsed) {
    return error(StatusCode::kUnsupported,
                 "include has message.output_text.logprobs, and the output is read for tool calls or reasoning; wanted "
                 "a request without tools to a model without reasoning, or /v1/chat/completions");
  }
  sampling.params.top_logprobs = static_cast<int32_t>(*translated.top_logprobs);
  return check_logprob_volume(sampling.params, sampling.max_tokens, 1, model);
}

// Of a response in the background.
Status not_to_be_stored(const ResponseStore& store) {
  if (store.enabled()) {
    return invalid_argument("background is true, and input is over {} bytes, which are not stored; wanted less",
                            kMaxConversationBytes);
  }
  return error(StatusCode::kUnsupported,
               "background is not supported by this server: it stores no responses (--response-store-mib)");
}

struct ResponsesJob {
  std::string model_name;  // as the client calls it
  bool store = true;
  StoredInput input;
  ResponsesBody translated;
  TranslatedChat chat;
};

Result<ResponsesJob> read_job(ApiContext& context, const http::Request& request, MediaUrls& urls) {
  const ModelFacts& model = context.engine.model();
  ResponsesJob job;
  ASSIGN_OR_RETURN(Json body, parse_body(request.body));
  RETURN_IF_ERROR(json_read(body, "store", job.store));
  ASSIGN_OR_RETURN(job.input, resolve_stored_input(body, context.state->responses, unix_seconds()));
  ASSIGN_OR_RETURN(job.model_name, context.names.read(body));
  MediaParts media(model.media, MediaDialect::kResponses, &urls);
  ASSIGN_OR_RETURN(job.translated, translate_responses(body, request.body, media));
  ASSIGN_OR_RETURN(job.chat, read_translated_chat(job.translated.chat, body, request, model,
                                                  {kResponsesDialect, read_responses_grammar}, media));
  RETURN_IF_ERROR(read_shown_logprobs(job.translated, job.chat.view, model, job.chat.fields.sampling));
  return job;
}

Status create(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, MediaUrls& urls) {
  ASSIGN_OR_RETURN(ResponsesJob job, read_job(context, request, urls));
  const ResponsesBody& translated = job.translated;
  TranslatedChat& chat = job.chat;
  CommonFields& fields = chat.fields;
  // What could not be gone on from is not kept.
  const bool store = job.store && context.state->responses.enabled() && job.input.items.size() <= kMaxConversationBytes;
  ResponsesFormat::Facts facts;
  facts.model = std::move(job.model_name);
  facts.id = fields.rid.empty() ? ResponseStore::make_id() : fields.rid;
  facts.request_members = request_members(request.body, fields.sampling.params, store);
  const std::string id = facts.id;
  if (store) {
    facts.store = [state = context.state, id, input = std::move(job.input)](std::string answer, const auto& items,
                                                                            Background background) {
      state->responses.add(id, std::move(answer), input.items, input.before, items, unix_seconds(), background);
    };
  }
  http::ResponderPtr answered = responder;
  if (translated.background) {
    if (!store) return not_to_be_stored(context.state->responses);
    facts.client = std::exchange(answered, context.server.detached_responder(responder->label()));
    // Before it knows the id, which alone ends such a response.
    responder->on_disconnect([state = context.state, id] { state->live.abort(id); });
  }
  const TokenNames names{.engine = context.engine,
                         .top = static_cast<std::size_t>(translated.top_logprobs.value_or(0))};
  auto format = std::make_unique<ResponsesFormat>(std::move(facts), chat.view, names);
  const ReplyOptions options{.stream = fields.stream, .retained = true};
  auto reply = std::make_shared<Reply>(context, std::move(answered), std::move(format), options);
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(chat.prompt));
  reply->start(make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1), {{id, 0, 1}});
  return ok_status();
}

// The tokens of the prompt that the same body has at /v1/responses.
Status count_input_tokens(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder,
                          MediaUrls& urls) {
  ASSIGN_OR_RETURN(ResponsesJob job, read_job(context, request, urls));
  context.engine.tokenize(std::move(job.chat.prompt), [responder](Result<TokenizeReply> reply) {
    if (!reply.ok()) return static_cast<void>(responder->send(error_response(field_error(reply.status()))));
    responder->send(
        {.body = fmt::format("{{\"object\":\"response.input_tokens\",\"input_tokens\":{}}}", reply->ids.size())});
  });
  return ok_status();
}

// What it goes on from has to be read too.
bool is_heavy(ApiContext& context, const http::Request& request) {
  if (request.body.size() > kInlineAnswerBytes) return false;  // such a body is on that thread already
  const Result<Json> body = parse_body(request.body);
  return body.ok() && bytes_referred_to(*body, context.state->responses, unix_seconds()) > kInlineAnswerBytes;
}

}  // namespace

void add_responses_routes(ApiContext& context) {
  const auto add = [&](const std::string& pattern, FetchingHandler handle) {
    const auto render = [](const Status& status, const http::Request&) { return error_response(field_error(status)); };
    add_fetching_route(context, {.pattern = pattern, .handle = handle, .render = render, .is_heavy = is_heavy});
  };
  for (const std::string path : {"/v1/responses", "/responses"}) {
    add(path, create);
    add(path + "/input_tokens", count_input_tokens);
    add_stored_response_routes(context, path);
  }
}

}  // namespace millrace::api
