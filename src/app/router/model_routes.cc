#include "app/router/model_routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/error.h"
#include "api/fields.h"
#include "api/health.h"
#include "api/messages_error.h"
#include "api/multipart.h"
#include "api/ollama_error.h"
#include "api/ollama_models.h"
#include "api/routes.h"
#include "app/router/metrics_merge.h"
#include "app/router/model_lists.h"
#include "app/web_files.h"
#include "base/json.h"

namespace millrace {
namespace {

using http::Access;

struct Forwarded {
  const char* method;
  const char* pattern;
  Access access = Access::kUser;
  bool require_json = true;
};

// What a model's server answers (docs/api.md). A request without a body names its model as ?model=NAME.
constexpr Forwarded kForwarded[] = {
    {"POST", "/v1/chat/completions"},
    {"POST", "/chat/completions"},
    {"POST", "/v1/completions"},
    {"POST", "/completions"},
    {"POST", "/v1/messages"},
    {"POST", "/messages"},
    {"POST", "/v1/messages/count_tokens"},
    {"POST", "/messages/count_tokens"},
    {"POST", "/v1/embeddings"},
    {"POST", "/embeddings"},
    {"POST", "/v1/rerank"},
    {"POST", "/rerank"},
    {"POST", "/v2/rerank"},
    {"POST", "/v1/audio/speech"},
    {"POST", "/v1/audio/transcriptions", Access::kUser, false},
    {"POST", "/v1/audio/translations", Access::kUser, false},
    {"POST", "/generate"},
    {"PUT", "/generate"},
    {"POST", "/completion"},
    {"POST", "/apply-template"},
    {"GET", "/props"},
    {"GET", "/slots"},
    {"POST", "/tokenize"},
    {"POST", "/v1/tokenize"},
    {"POST", "/detokenize"},
    {"POST", "/v1/detokenize"},
    {"POST", "/abort_request"},
    {"POST", "/api/chat", Access::kUser, false},
    {"POST", "/api/generate", Access::kUser, false},
    {"POST", "/api/embed", Access::kUser, false},
    {"POST", "/api/embeddings", Access::kUser, false},
    {"POST", "/api/show", Access::kUser, false},
    {"GET", "/server_info"},
    {"GET", "/get_server_info"},
    {"GET", "/model_info"},
    {"GET", "/get_model_info"},
    {"GET", "/live/events"},
    {"POST", "/flush_cache", Access::kAdmin},
    {"GET", "/flush_cache", Access::kAdmin},
    {"POST", "/start_profile", Access::kAdmin},
    {"GET", "/start_profile", Access::kAdmin},
    {"POST", "/stop_profile", Access::kAdmin},
    {"GET", "/stop_profile", Access::kAdmin},
    {"POST", "/pause_generation", Access::kAdmin},
    {"POST", "/continue_generation", Access::kAdmin},
    {"POST", "/update_weights_from_disk", Access::kAdmin},
};

// Below /v1/responses and /responses.
constexpr std::pair<const char*, const char*> kForwardedResponses[] = {
    {"POST", ""},        {"POST", "/input_tokens"},    {"GET", "/{id}"},
    {"DELETE", "/{id}"}, {"GET", "/{id}/input_items"}, {"POST", "/{id}/cancel"},
};

// In the words of the endpoint's family.
http::Response error_for(const http::RequestLabel& request, const Status& why) {
  const api::ApiError error = api::field_error(why);
  if (request.path.starts_with("/api/")) return api::ollama_error_response(error);
  if (request.path.starts_with("/v1/messages") || request.path.starts_with("/messages"))
    return api::messages_error_response(error, request.request_id);
  return api::error_response(error);
}

void refuse(const http::ResponderPtr& responder, const Status& why) {
  responder->send(error_for(responder->label(), why));
}

// Whether the model has work of it; other requests only look at one.
bool is_work(const http::Request& request) { return request.method == "POST" || request.method == "PUT"; }

// "": none is named.
Result<std::string> name_in(const http::Request& request) {
  std::string name;
  if (request.query_value("model", name) || request.body.empty()) return name;
  const std::string* const type = request.headers.find("Content-Type");
  if (type != nullptr && type->starts_with("multipart/")) {
    ASSIGN_OR_RETURN(const std::vector<api::FormPart> parts, api::read_form(*type, request.body));
    for (const api::FormPart& part : parts) {
      if (part.name == "model") return std::string(part.content);
    }
    return name;
  }
  ASSIGN_OR_RETURN(const Json body, api::parse_body(request.body));
  RETURN_IF_ERROR(json_read(body, "model", name));
  if (name.empty() && request.path.starts_with("/api/")) RETURN_IF_ERROR(json_read(body, "name", name));
  return name;
}

std::string names_of(const std::vector<ServedModel>& models) {
  std::vector<std::string> names;
  for (const ServedModel& model : models) {
    if (names.size() == kMaxNamesInError) {
      return fmt::format("'{}' and {} more", fmt::join(names, "', '"), models.size() - names.size());
    }
    names.push_back(model.name);
  }
  return fmt::format("'{}'", fmt::join(names, "', '"));
}

// The pages of the models' servers, as they come.
struct MetricsPage {
  http::ResponderPtr responder;
  std::string router;
  std::vector<std::pair<std::string, std::string>> pages;
  std::atomic<std::size_t> missing{0};

  void finish() {
    std::erase_if(pages, [](const auto& page) { return page.second.empty(); });
    responder->send(
        {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = router + merge_metrics(pages)});
  }
};

}  // namespace

void ModelRoutes::add_local(const char* method, const char* pattern, http::Access access, Method handle) {
  server_.add_route({.method = method,
                     .pattern = pattern,
                     .access = access,
                     .require_json = false,
                     .handler = [this, handle](auto request, auto responder) { (this->*handle)(request, responder); }});
}

void ModelRoutes::add_forwarded(const char* method, const std::string& pattern, http::Access access,
                                bool require_json) {
  server_.add_route({.method = method,
                     .pattern = pattern,
                     .access = access,
                     .same_origin = pattern == "/live/events",
                     .require_json = require_json,
                     .handler = [this](auto request, auto responder) { forward(request, responder); }});
}

void ModelRoutes::add_lists() {
  const Access models = options_.public_models ? Access::kPublic : Access::kUser;
  for (const char* path : {"/v1/models", "/models"}) add_local("GET", path, models, &ModelRoutes::list);
  for (const char* path : {"/v1/models/{id...}", "/models/{id...}"})
    add_local("GET", path, models, &ModelRoutes::describe);
  add_local("GET", "/api/tags", models, &ModelRoutes::tags);
  add_local("GET", "/api/ps", models, &ModelRoutes::running);
}

void ModelRoutes::add() {
  for (const Forwarded& each : kForwarded) add_forwarded(each.method, each.pattern, each.access, each.require_json);
  for (const std::string path : {"/v1/responses", "/responses"}) {
    for (const auto& [method, rest] : kForwardedResponses) add_forwarded(method, path + rest, Access::kUser, true);
    api::add_compaction_refusal(server_, path);
  }
  add_lists();
  add_local("POST", "/models/load", Access::kUser, &ModelRoutes::load);
  add_local("POST", "/models/unload", Access::kUser, &ModelRoutes::unload);
  for (const char* path : api::kReadyPaths) add_local("GET", path, Access::kPublic, &ModelRoutes::ready);
  add_local("GET", "/v1/realtime", Access::kUser, &ModelRoutes::refuse_realtime);
  add_local("GET", "/metrics", Access::kPublic, &ModelRoutes::metrics);
  const auto constant = [this](const char* path, std::string body) {
    server_.add_route({.method = "GET", .pattern = path, .access = Access::kPublic, .handler = [body](auto, auto out) {
                         out->send({.body = body});
                       }});
  };
  constant("/live", R"({"live":true})");
  constant("/version", fmt::format(R"({{"version":"{}"}})", options_.version));
  constant("/api/version", api::ollama_version_body());
  if (options_.web) return http::add_static_files(server_, web_files());
  add_local("GET", "/", Access::kPublic, &ModelRoutes::hello);
}

// A connection that stays cannot be carried to a server that may be unloaded.
void ModelRoutes::refuse_realtime(const http::RequestPtr&, const http::ResponderPtr& responder) {
  refuse(responder, error(StatusCode::kUnsupported,
                          "/v1/realtime is not served by a server of several models; wanted one with --model alone"));
}

Result<ServedModel> ModelRoutes::named(const std::string& name) const {
  const auto models = pool_.models();
  if (const ServedModel* model = find_model(*models, name)) return *model;
  return error(StatusCode::kNotFound, "The model '{}' does not exist; this server has {}", name.substr(0, 200),
               names_of(*models));
}

// Without a name: the only model, or the only one that is loaded, unless requests have to name it.
Result<ServedModel> ModelRoutes::model_of(const http::Request& request) const {
  ASSIGN_OR_RETURN(const std::string name, name_in(request));
  if (!name.empty()) return named(name);
  const auto models = pool_.models();
  if (options_.require_model && is_work(request)) {
    return invalid_argument("model is missing; wanted one of {}", names_of(*models));
  }
  if (models->size() == 1) return models->front();
  const ServedModel* loaded = nullptr;
  for (const ServedModel& model : *models) {
    if (pool_.status(model.name).state != ModelState::kLoaded) continue;
    if (loaded != nullptr) return invalid_argument("model is missing; wanted one of {}", names_of(*models));
    loaded = &model;
  }
  if (loaded == nullptr) return invalid_argument("model is missing; wanted one of {}", names_of(*models));
  return *loaded;
}

void ModelRoutes::forward(const http::RequestPtr& request, const http::ResponderPtr& responder) {
  const auto model = model_of(*request);
  if (!model.ok()) return refuse(responder, model.status());
  std::string target = http::escaped(request->path);
  if (!request->query.empty()) target += "?" + request->query;
  if (!is_work(*request)) return look(*model, request, responder, std::move(target));
  const auto gone = [responder] { return responder->disconnected(); };
  pool_.acquire(model->name, gone, [this, request, responder, target](Result<ModelPool::Use> use) {
    if (!use.ok()) return refuse(responder, use.status());
    forwarder_.forward(request, responder, {use->socket, target}, [held = use->held] {});
  });
}

// What only looks at a model neither loads it nor keeps it: a dashboard is no use of it.
void ModelRoutes::look(const ServedModel& model, const http::RequestPtr& request, const http::ResponderPtr& responder,
                       std::string target) {
  const ModelStatus status = pool_.status(model.name);
  if (status.state == ModelState::kLoaded) {
    return forwarder_.forward(request, responder, {status.socket, std::move(target)}, nullptr);
  }
  refuse(responder,
         error(StatusCode::kConflict, "the model '{}' is {}; wanted it loaded: by a request, or /models/load",
               model.name, model_state_name(status.state)));
}

void ModelRoutes::list(const http::RequestPtr&, const http::ResponderPtr& responder) {
  const ModelPool::Now now = pool_.now();
  responder->send({.body = model_list(*now.models, now.statuses)});
}

void ModelRoutes::describe(const http::RequestPtr& request, const http::ResponderPtr& responder) {
  const std::string id(request->param("id"));
  const auto model = named(id);
  if (!model.ok()) return refuse(responder, model.status());
  responder->send({.body = model_object(*model, id, pool_.status(model->name))});
}

void ModelRoutes::load(const http::RequestPtr& request, const http::ResponderPtr& responder) {
  const auto model = model_of(*request);
  if (!model.ok()) return refuse(responder, model.status());
  pool_.load(model->name);
  const auto gone = [responder] { return responder->disconnected(); };
  pool_.acquire(model->name, gone, [responder](Result<ModelPool::Use> use) {
    if (!use.ok()) return refuse(responder, use.status());
    responder->send({.body = R"({"success":true})"});
  });
}

void ModelRoutes::unload(const http::RequestPtr& request, const http::ResponderPtr& responder) {
  const auto model = model_of(*request);
  if (!model.ok()) return refuse(responder, model.status());
  if (pool_.unload(model->name)) return static_cast<void>(responder->send({.body = R"({"success":true})"}));
  refuse(responder, error(StatusCode::kConflict, "the model '{}' is not loaded", model->name));
}

void ModelRoutes::ready(const http::RequestPtr&, const http::ResponderPtr& responder) {
  responder->send(
      {.body = R"({"ready":true,"reason":"","stages":[],"models":)" + model_states(pool_.statuses()) + "}"});
}

void ModelRoutes::metrics(const http::RequestPtr&, const http::ResponderPtr& responder) {
  const std::vector<ModelStatus> statuses = pool_.statuses();
  auto page = std::make_shared<MetricsPage>();
  page->responder = responder;
  page->router = Metrics("millrace:").render(model_samples(statuses));
  std::vector<std::string> sockets;
  for (const ModelStatus& status : statuses) {
    if (status.state != ModelState::kLoaded) continue;
    page->pages.emplace_back(status.name, "");
    sockets.push_back(status.socket);
  }
  page->missing = sockets.size();
  if (sockets.empty()) return page->finish();
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    forwarder_.fetch({sockets[i], "/metrics"}, kMetricsTimeoutMs, [page, i](Result<http::ClientResponse> answer) {
      if (answer.ok() && answer->status == 200) page->pages[i].second = std::move(answer->body);
      if (--page->missing == 0) page->finish();
    });
  }
}

void ModelRoutes::tags(const http::RequestPtr&, const http::ResponderPtr& responder) {
  const ModelPool::Now now = pool_.now();
  responder->send({.body = ollama_list(*now.models, now.statuses, false)});
}

void ModelRoutes::running(const http::RequestPtr&, const http::ResponderPtr& responder) {
  const ModelPool::Now now = pool_.now();
  responder->send({.body = ollama_list(*now.models, now.statuses, true)});
}

void ModelRoutes::hello(const http::RequestPtr&, const http::ResponderPtr& responder) {
  responder->send({.content_type = "text/plain; charset=utf-8",
                   .body = fmt::format("Millrace {} serves {} models; /v1/models lists them.\n", options_.version,
                                       pool_.models()->size())});
}

}  // namespace millrace
