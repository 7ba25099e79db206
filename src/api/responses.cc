// POST /v1/responses: OpenAI's Responses API over the way of a chat. Nothing is stored, so the routes of a stored
// response know none.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/choices.h"
#include "api/fields.h"
#include "api/grammar_fields.h"
#include "api/media_route.h"
#include "api/reply.h"
#include "api/responses_format.h"
#include "api/responses_request.h"
#include "api/routes.h"
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

Status create(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, MediaUrls& urls) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  ResponsesFormat::Facts facts;
  ASSIGN_OR_RETURN(facts.model, context.names.read(body));
  MediaParts media(model.media, MediaDialect::kResponses, &urls);
  ASSIGN_OR_RETURN(const ResponsesBody translated, translate_responses(body, request.body, media));
  ASSIGN_OR_RETURN(TranslatedChat chat, read_translated_chat(translated.chat, body, request, model,
                                                             {kResponsesDialect, read_responses_grammar}, media));
  CommonFields& fields = chat.fields;
  RETURN_IF_ERROR(read_shown_logprobs(translated, chat.view, model, fields.sampling));
  facts.id = fields.rid.empty() ? make_id("resp_") : fields.rid;
  facts.request_members = request_members(request.body, fields.sampling.params);
  const std::string id = facts.id;
  const TokenNames names{.engine = context.engine,
                         .top = static_cast<std::size_t>(translated.top_logprobs.value_or(0))};
  auto format = std::make_unique<ResponsesFormat>(std::move(facts), chat.view, names);
  const ReplyOptions options{.stream = fields.stream, .retained = true};
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(chat.prompt));
  reply->start(make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1), {{id, 0, 1}});
  return ok_status();
}

void no_response(const http::Request& request, const http::ResponderPtr& responder) {
  const std::string_view id = request.param("id");
  responder->send(error_response({.http_status = 404,
                                  .message = fmt::format("Response with id '{}' not found: responses are not stored "
                                                         "here, they are in the answer of POST /v1/responses alone",
                                                         id.substr(0, 64))}));
}

}  // namespace

void add_responses_routes(ApiContext& context) {
  for (const std::string path : {"/v1/responses", "/responses"}) {
    add_media_route(context, path, create);
    for (const auto& [method, rest] :
         {std::pair("GET", "/{id}"), {"DELETE", "/{id}"}, {"POST", "/{id}/cancel"}, {"GET", "/{id}/input_items"}}) {
      context.server.add_route({.method = method, .pattern = path + rest, .handler = [](auto request, auto responder) {
                                  no_response(*request, responder);
                                }});
    }
  }
}

}  // namespace millrace::api
