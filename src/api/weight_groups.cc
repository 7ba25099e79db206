#include "api/weight_groups.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "api/admin_fields.h"
#include "api/fields.h"
#include "api/weight_answers.h"

namespace millrace::api {
namespace {

using Handler = Status (*)(WeightControl&, const http::Request&, const http::ResponderPtr&);

// Trainers take a 400 with its message for the end of an update, and try others again.
http::Response refusal(const Status& status) {
  if (status.code() == StatusCode::kInternal) return failure(status);
  return failure(Status(StatusCode::kInvalidArgument, status.message()));
}

WeightControl::Done answer(const http::ResponderPtr& responder, const char* message) {
  return [responder, message](const Status& status) {
    responder->send(status.ok() ? http::Response{.body = success(message)} : refusal(status));
  };
}

Status init(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(const TrainerGroup group, read_trainer_group(body));
  weights.join_group(group, answer(responder, "joined the group"));
  return ok_status();
}

Status destroy(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  ASSIGN_OR_RETURN(const std::string name, read_group_name(body));
  weights.leave_group(name, answer(responder, "left the group"));
  return ok_status();
}

Status prepare(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(const WeightPlan plan, read_weight_plan(body));
  weights.prepare(plan, answer(responder, "waiting for the first bucket"));
  return ok_status();
}

Status complete(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  LiveCompletion completion;
  ASSIGN_OR_RETURN(completion.group, read_group_name(body));
  RETURN_IF_ERROR(read_label(body, "weight_version", completion.label));
  RETURN_IF_ERROR(json_read(body, "flush_cache", completion.flush_cache));
  ASSIGN_OR_RETURN(completion.policy, read_policy(body, "policy", wire::InFlightPolicy::kInPlace));
  weights.complete(std::move(completion), [responder](const Result<LiveUpdated>& updated) {
    if (!updated.ok()) {
      responder->send(refusal(updated.status()));
      return;
    }
    std::string members = fmt::format(",\"num_buckets_received\":{},\"weight_version\":", updated->buckets);
    json_append_string(members, updated->label);
    responder->send({.body = success("the new weights serve", members)});
  });
  return ok_status();
}

Status abort(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  std::optional<std::string> group;  // absent: whichever sends the weights
  if (json_find(body, "group_name") != nullptr) {
    ASSIGN_OR_RETURN(group, read_group_name(body));
  }
  weights.abort_update(group, answer(responder, "aborted; the old weights serve"));
  return ok_status();
}

}  // namespace

void add_weight_group_routes(http::Server& server, WeightControl& weights) {
  const auto add = [&](const char* pattern, Handler handle) {
    server.add_route({.method = "POST",
                      .pattern = pattern,
                      .access = http::Access::kAdmin,
                      .handler = [&weights, handle](auto request, auto responder) {
                        const Status status = handle(weights, *request, responder);
                        if (!status.ok()) responder->send(refusal(status));
                      }});
  };
  add("/init_weights_update_group", init);
  add("/destroy_weights_update_group", destroy);
  add("/prepare_weights_update", prepare);
  add("/complete_weights_update", complete);
  add("/abort_weights_update", abort);
}

}  // namespace millrace::api
