#include "api/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/admin_fields.h"
#include "api/error.h"
#include "api/fields.h"
#include "api/unserved_fields.h"
#include "api/vllm_weights.h"
#include "api/weight_answers.h"
#include "api/weight_bodies.h"
#include "api/weight_groups.h"
#include "api/weight_inspection.h"

namespace millrace::api {

void extend_spans(std::vector<WeightSpan>& spans, uint64_t version, int32_t completion_tokens) {
  const int32_t begin = spans.empty() ? 0 : spans.back().end;
  if (completion_tokens <= begin) return;
  if (!spans.empty() && (version == 0 || spans.back().version == 0 || spans.back().version == version)) {
    spans.back().version = std::max(spans.back().version, version);
    spans.back().end = completion_tokens;
  } else {
    spans.push_back({version, begin, completion_tokens});
  }
}

namespace {

std::string label_of(const WeightControl* weights, uint64_t version) {
  return weights != nullptr ? weights->label(version) : std::to_string(version);
}

}  // namespace

void append_version(std::string& out, const WeightControl* weights, uint64_t version) {
  json_append_string(out, label_of(weights, version));
}

void append_spans(std::string& out, const WeightControl* weights, const std::vector<WeightSpan>& spans,
                  uint64_t version, int32_t completion_tokens, const std::string& extra) {
  const auto append = [&](const std::string& label, int32_t begin, int32_t end) {
    out += out.ends_with('[') ? "{\"version\":" : ",{\"version\":";
    json_append_string(out, label);
    fmt::format_to(std::back_inserter(out), ",\"start\":{},\"end\":{}{}}}", begin, end, extra);
  };
  if (completion_tokens == 0 || spans.empty()) return append(label_of(weights, version), 0, completion_tokens);
  std::string label = label_of(weights, spans.front().version);
  int32_t begin = 0;
  for (const WeightSpan& span : spans) {
    std::string next = label_of(weights, span.version);
    if (next == label || span.start >= completion_tokens) continue;
    append(label, begin, span.start);
    label = std::move(next);
    begin = span.start;
  }
  append(label, begin, completion_tokens);
}

namespace {

Result<DiskUpdate> read_disk_update(const Json& body) {
  DiskUpdate update;
  RETURN_IF_ERROR(json_read(body, "model_path", update.path));
  if (update.path.empty()) return invalid_argument("model_path is missing; wanted a model folder on the server");
  RETURN_IF_ERROR(read_label(body, "weight_version", update.label));
  RETURN_IF_ERROR(json_read(body, "flush_cache", update.flush_cache));
  std::string format = "auto";
  RETURN_IF_ERROR(json_read(body, "load_format", format));
  if (format != "auto") return invalid_argument("load_format is '{}'; wanted 'auto'", format.substr(0, 64));
  RETURN_IF_ERROR(refuse_unless(body, "manifest", nullptr));
  ASSIGN_OR_RETURN(update.policy, read_update_policy(body));
  return update;
}

// What the handlers of one server share.
struct WeightRoutes {
  WeightControl& weights;
  std::function<void()> abort_all;  // null: this server has no names of requests
};
using RouteHandler = Status (*)(const WeightRoutes&, const http::Request&, const http::ResponderPtr&);

Status update_from_disk(const WeightRoutes& routes, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(DiskUpdate update, read_disk_update(body));
  bool at_once = false;
  RETURN_IF_ERROR(json_read(body, "is_async", at_once));
  WeightControl& weights = routes.weights;
  RETURN_IF_ERROR(weights.update_from_disk(std::move(update), [&weights, responder, at_once](const Status& status) {
    if (at_once) return;
    const WeightsState state = weights.state();
    std::string members = fmt::format(",\"num_paused_requests\":{},\"weight_version\":", state.paused_requests);
    json_append_string(members, state.label);
    responder->send(status.ok() ? http::Response{.body = success("the new weights serve", members)}
                                : failure(status, "model_path"));
  }));
  if (at_once) responder->send({.body = success("the update has begun; see /weights_update_status")});
  return ok_status();
}

// SGLang's words, which trainers compare.
http::Response paused_or_not(const Status& status, const char* done) {
  if (!status.ok()) return failure(status);
  return {.body =
              fmt::format("{{\"message\":\"Generation {} successfully.\",\"status\":\"ok\",\"success\":true}}", done)};
}

Status pause(const WeightRoutes& routes, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  ASSIGN_OR_RETURN(const auto policy, read_policy(body, "mode", wire::InFlightPolicy::kAbort));
  routes.weights.pause(policy, [responder](const Status& status) { responder->send(paused_or_not(status, "paused")); });
  return ok_status();
}

Status resume(const WeightRoutes& routes, const http::Request& request, const http::ResponderPtr& responder) {
  RETURN_IF_ERROR(parse_command(request).status());
  routes.weights.resume([responder](const Status& status) { responder->send(paused_or_not(status, "continued")); });
  return ok_status();
}

Status show(const WeightRoutes& routes, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  const WeightsState state = routes.weights.state();
  std::string out = fmt::format(
      "{{\"state\":\"{}\",\"paused\":{},\"pausing\":{},\"seconds\":{:.3f},\"weight_version\":", phase_name(state.phase),
      state.paused, state.pausing, state.seconds);
  json_append_string(out, state.label);
  fmt::format_to(std::back_inserter(out), ",\"version_number\":{},\"updates_completed\":{},\"updates_failed\":{}",
                 state.version, state.completed, state.failed);
  append_progress(out, state);
  fmt::format_to(std::back_inserter(out), ",\"snapshot_version\":{},\"snapshot_path\":", state.snapshot.version);
  json_append_string(out, state.snapshot.path);
  out += ",\"snapshot_error\":";
  json_append_string(out, state.snapshot.error);
  responder->send({.body = out + "}"});
  return ok_status();
}

Status rename_version(const WeightRoutes& routes, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  std::string label;
  bool abort = false;
  RETURN_IF_ERROR(read_label(body, "new_version", label));
  RETURN_IF_ERROR(json_read(body, "abort_all_requests", abort));
  if (label.empty()) return invalid_argument("new_version is missing; wanted the name of the serving weights");
  if (abort && !routes.abort_all) {
    return invalid_argument("abort_all_requests is true; wanted false: this pipeline has no /abort_request");
  }
  RETURN_IF_ERROR(routes.weights.set_label(label));
  if (abort) routes.abort_all();
  std::string members = ",\"new_version\":";
  json_append_string(members, label);
  responder->send({.body = success("renamed", members)});
  return ok_status();
}

}  // namespace

void add_weight_routes(http::Server& server, WeightControl& weights, std::function<void()> abort_all) {
  const WeightRoutes routes{weights, std::move(abort_all)};
  const auto add = [&](const char* method, const char* pattern, RouteHandler handle) {
    server.add_route({.method = method,
                      .pattern = pattern,
                      .access = http::Access::kAdmin,
                      .handler = [routes, handle](auto request, auto responder) {
                        const Status status = handle(routes, *request, responder);
                        if (!status.ok()) responder->send(failure(status));
                      }});
  };
  add("POST", "/update_weights_from_disk", update_from_disk);
  add("POST", "/update_weight_version", rename_version);
  add("POST", "/pause_generation", pause);
  add("POST", "/continue_generation", resume);
  add("GET", "/weights_update_status", show);
  add_weight_group_routes(server, weights);
  add_weight_body_route(server, weights);
  add_weight_inspection_routes(server, weights);
  add_vllm_weight_routes(server, weights);
}

}  // namespace millrace::api
