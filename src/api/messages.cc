// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the way of a chat.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/choices.h"
#include "api/fetching_route.h"
#include "api/grammar_fields.h"
#include "api/messages_error.h"
#include "api/messages_format.h"
#include "api/messages_request.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/translated_chat.h"

namespace millrace::api {
namespace {

struct MessagesJob {
  std::string model_name;  // as the client calls it
  bool thinking_omitted = false;
  TranslatedChat chat;
};

Result<MessagesJob> read_job(ApiContext& context, const http::Request& request, const Json& body, MediaUrls& urls) {
  const ModelFacts& model = context.engine.model();
  MessagesJob job;
  ASSIGN_OR_RETURN(job.model_name, context.names.read(body));
  MediaParts media(model.media, MediaDialect::kMessages, &urls);
  ASSIGN_OR_RETURN(const ChatBody chat, translate_messages(body, request.body, model, media));
  job.thinking_omitted = chat.thinking_omitted;
  ASSIGN_OR_RETURN(job.chat, read_translated_chat(chat.text, body, request, model,
                                                  {kMessagesDialect, read_messages_grammar}, media));
  return job;
}

Status create(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, MediaUrls& urls) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  if (!json_find(body, "max_tokens")) {
    return invalid_argument("max_tokens is missing; wanted an integer in [1, {}]", INT32_MAX);
  }
  ASSIGN_OR_RETURN(MessagesJob job, read_job(context, request, body, urls));
  const CommonFields& fields = job.chat.fields;
  const std::string id = fields.rid.empty() ? make_id("msg_") : fields.rid;
  MessagesFormat::Names names{id, job.model_name, request.request_id};
  auto format = std::make_unique<MessagesFormat>(std::move(names), job.chat.view, job.thinking_omitted);
  const ReplyOptions options{.stream = fields.stream};
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(job.chat.prompt));
  reply->start(make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1), {{id, 0, 1}});
  return ok_status();
}

// The tokens of the prompt that the same body has at /v1/messages.
Status count_tokens(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder,
                    MediaUrls& urls) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(MessagesJob job, read_job(context, request, body, urls));
  context.engine.tokenize(
      std::move(job.chat.prompt), [responder, id = request.request_id](Result<TokenizeReply> reply) {
        if (!reply.ok()) {
          return static_cast<void>(responder->send(messages_error_response(field_error(reply.status()), id)));
        }
        responder->send({.headers = {{std::string(kRequestIdField), id}},
                         .body = fmt::format("{{\"input_tokens\":{}}}", reply->ids.size())});
      });
  return ok_status();
}

// With the errors of this family.
void add_route(ApiContext& context, const std::string& pattern, FetchingHandler handle) {
  const auto render = [](const Status& status, const http::Request& request) {
    return messages_error_response(field_error(status), request.request_id);
  };
  const auto render_error = [](int status, std::string_view message, std::string_view request_id) {
    return messages_error_response({.http_status = status, .message = std::string(message)}, request_id);
  };
  add_fetching_route(context, {.pattern = pattern, .handle = handle, .render = render, .render_error = render_error});
}

}  // namespace

void add_messages_routes(ApiContext& context) {
  for (const char* path : {"/v1/messages", "/messages"}) {
    add_route(context, path, create);
    add_route(context, std::string(path) + "/count_tokens", count_tokens);
  }
}

}  // namespace millrace::api
