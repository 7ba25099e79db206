// What serves, and whether it is ready: /v1/models, /live, /ready, /health, /version, /.
#include "api/error.h"
#include "api/fields.h"
#include "api/health.h"
#include "api/model_objects.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

std::string model_object(const std::string& name, const ModelFacts& model) {
  return begin_model_object(
             {.id = name, .root = model.name, .created = model.created, .context_length = model.context_length}) +
         "}";
}

void list_models(ApiContext& context, const http::ResponderPtr& responder) {
  std::vector<std::pair<std::string, std::string>> objects;
  for (const std::string& name : context.names.names) {
    objects.emplace_back(name, model_object(name, context.engine.model()));
  }
  responder->send({.body = model_list_body(objects)});
}

void get_model(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  const std::string wanted(request.param("id"));
  if (const Status known = context.names.check(wanted); !known.ok()) {
    return static_cast<void>(responder->send(error_response(field_error(known))));
  }
  responder->send({.body = model_object(wanted, context.engine.model())});
}

// Constant cost: it looks at the last heartbeats.
void ready(ApiContext& context, const http::ResponderPtr& responder) {
  responder->send(health_response(context.pipeline ? context.pipeline->health() : context.engine.health()));
}

void version(ApiContext& context, const http::ResponderPtr& responder) {
  responder->send({.body = fmt::format("{{\"version\":\"{}\"}}", context.version)});
}

void hello(ApiContext& context, const http::ResponderPtr& responder) {
  responder->send(
      {.content_type = "text/plain; charset=utf-8",
       .body = fmt::format(
           "Millrace {} serves {}.\nPoint an OpenAI client at /v1 of this address, or one of Anthropic or Ollama "
           "at the address itself; /ready reports whether requests are accepted now.\n",
           context.version, context.engine.model().name)});
}

// A server of several models answers this itself (app/router).
Status refuse_loading(ApiContext& context, const http::Request&, const http::ResponderPtr&) {
  return error(StatusCode::kUnsupported,
               "this server has the one model that it was started with, '{}'; wanted a server of several: "
               "serve --models-dir FOLDER, or --model for each",
               context.engine.model().name);
}

}  // namespace

void add_service_routes(ApiContext& context) {
  using Answer = void (*)(ApiContext&, const http::ResponderPtr&);
  const auto get = [&context](const char* pattern, http::Access access, Answer answer) {
    context.server.add_route(
        {.method = "GET", .pattern = pattern, .access = access, .handler = [&context, answer](auto, auto responder) {
           answer(context, responder);
         }});
  };
  if (context.hello) get("/", http::Access::kPublic, hello);
  get("/live", http::Access::kPublic,
      [](ApiContext&, const http::ResponderPtr& responder) { responder->send({.body = "{\"live\":true}"}); });
  for (const char* path : kReadyPaths) get(path, http::Access::kPublic, ready);
  get("/version", http::Access::kPublic, version);
  add_post_route(context, "/models/load", refuse_loading);
  add_post_route(context, "/models/unload", refuse_loading);
  const http::Access models = context.public_models ? http::Access::kPublic : http::Access::kUser;
  for (const char* path : {"/v1/models", "/models"}) {
    get(path, models, list_models);
    const std::string one = std::string(path) + "/{id...}";
    context.server.add_route(
        {.method = "GET", .pattern = one, .access = models, .handler = [&context](auto request, auto responder) {
           get_model(context, *request, responder);
         }});
  }
}

namespace {

http::Handler answer_or_refuse(ApiContext& context, PostHandler handle) {
  return [&context, handle](http::RequestPtr request, http::ResponderPtr responder) {
    Status status = handle(context, *request, responder);
    if (status.ok()) return;
    note_refusal(context, responder->label(), status);
    responder->send(error_response(field_error(status)));
  };
}

}  // namespace

void note_refusal(ApiContext& context, const http::RequestLabel& request, const Status& why) {
  context.state->requests.rejected(why.code());
  const RequestRecord& record = context.state->record;
  record.refused(request, record.begin(request, 0), context.engine.model().name, why);
}

void add_fallible_route(ApiContext& context, const char* method, const std::string& pattern, PostHandler handle,
                        http::Access access) {
  context.server.add_route(
      {.method = method, .pattern = pattern, .access = access, .handler = answer_or_refuse(context, handle)});
}

void add_post_route(ApiContext& context, const std::string& pattern, PostHandler handle, http::Access access) {
  add_fallible_route(context, "POST", pattern, handle, access);
}

void add_upload_route(ApiContext& context, const std::string& pattern, PostHandler handle) {
  context.server.add_route(
      {.method = "POST", .pattern = pattern, .require_json = false, .handler = answer_or_refuse(context, handle)});
}

void add_routes(ApiContext& context) {
  add_chat_routes(context);
  add_audio_routes(context);
  add_speech_routes(context);
  add_realtime_routes(context);
  add_messages_routes(context);
  add_responses_routes(context);
  add_ollama_routes(context);
  add_llama_routes(context);
  add_slot_route(context);
  add_completions_routes(context);
  add_generate_routes(context);
  add_embedding_routes(context);
  add_rerank_routes(context);
  add_token_routes(context);
  add_service_routes(context);
  add_info_routes(context);
  add_admin_routes(context);
  add_live_routes(context);
}

}  // namespace millrace::api
