#include "api/weight_groups.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "api/admin_fields.h"
#include "api/fields.h"
#include "api/unserved_fields.h"
#include "api/weight_answers.h"

namespace millrace::api {
namespace {

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

// What other transports would do is not done.
Status check_transport(const Json& body) {
  std::string transport = "nccl_broadcast";  // the name of broadcasts, whatever the group's backend
  RETURN_IF_ERROR(json_read(body, "transport", transport));
  if (transport != "nccl_broadcast" && transport != "nccl" && transport != "broadcast") {
    return error(StatusCode::kUnsupported, "transport is '{}'; wanted 'nccl_broadcast': tensors come by broadcast",
                 transport.substr(0, 64));
  }
  for (const char* key : {"sender_transfer_engine_info", "session_id", "p2p_tied_weight_aliases"}) {
    RETURN_IF_ERROR(refuse_unless(body, key, nullptr));
  }
  return refuse_unless(body, "run_post_process_weights", false);
}

Status prepare(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  RETURN_IF_ERROR(check_transport(body));
  ASSIGN_OR_RETURN(const WeightPlan plan, read_weight_plan(body));
  weights.prepare(plan, answer(responder, "waiting for the first bucket"));
  return ok_status();
}

Status complete(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  RETURN_IF_ERROR(check_transport(body));
  LiveCompletion completion{.timeout_ms = kCompleteMs};
  ASSIGN_OR_RETURN(completion.group, read_group_name(body));
  RETURN_IF_ERROR(json_read(body, "final", completion.last));
  RETURN_IF_ERROR(read_label(body, "weight_version", completion.label));
  RETURN_IF_ERROR(json_read(body, "flush_cache", completion.flush_cache));
  ASSIGN_OR_RETURN(completion.policy, read_policy(body, "policy", wire::InFlightPolicy::kInPlace));
  const char* message = completion.last ? "the new weights serve" : "staged; the next round may be prepared";
  weights.complete(std::move(completion), answer_updated(responder, message));
  return ok_status();
}

// SGLang's update in one call: the trainer posts it, broadcasts meanwhile, and reads the answer then.
Status update_from_distributed(WeightControl& weights, const http::Request& request,
                               const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  RETURN_IF_ERROR(check_transport(body));
  ASSIGN_OR_RETURN(const WeightPlan plan, read_weight_plan(body));
  LiveCompletion completion{.group = plan.group, .flush_cache = true};
  RETURN_IF_ERROR(read_label(body, "weight_version", completion.label));
  RETURN_IF_ERROR(json_read(body, "flush_cache", completion.flush_cache));
  ASSIGN_OR_RETURN(completion.policy, read_update_policy(body));
  weights.receive_and_complete(plan, std::move(completion), answer_updated(responder, "the new weights serve"));
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
  const auto add = [&](const char* pattern, WeightHandler handle) {
    add_weight_route(server, weights, "POST", pattern, handle);
  };
  add("/init_weights_update_group", init);
  add("/destroy_weights_update_group", destroy);
  add("/prepare_weights_update", prepare);
  add("/complete_weights_update", complete);
  add("/abort_weights_update", abort);
  add("/update_weights_from_distributed", update_from_distributed);
}

}  // namespace millrace::api
