#include "api/vllm_weights.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/admin_fields.h"
#include "api/fields.h"
#include "api/packed_weights.h"
#include "api/unserved_fields.h"
#include "api/weight_answers.h"

namespace millrace::api {
namespace {

WeightControl::Done answer(const http::ResponderPtr& responder, std::string body) {
  return [responder, body = std::move(body)](const Status& status) {
    responder->send(status.ok() ? http::Response{.body = body} : refusal(status));
  };
}

Status pause(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  std::string mode = "abort", wait;
  (void)request.query_value("mode", mode);
  if (request.query_value("wait_for_inflight_requests", wait) && wait != "false") mode = "wait";
  const WeightControl::Done done = answer(responder, R"({"status":"paused"})");
  if (mode == "wait") {
    weights.pause_when_idle(done);
  } else if (mode == "abort" || mode == "keep") {
    weights.pause(mode == "abort" ? wire::InFlightPolicy::kAbort : wire::InFlightPolicy::kInPlace, done);
  } else {
    return error(StatusCode::kUnsupported, "mode is '{}'; wanted 'abort', 'wait' or 'keep'", mode.substr(0, 64));
  }
  return ok_status();
}

Status resume(WeightControl& weights, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  weights.resume(answer(responder, R"({"status":"resumed"})"));
  return ok_status();
}

Status is_paused(WeightControl& weights, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  responder->send({.body = fmt::format("{{\"is_paused\":{}}}", weights.state().paused)});
  return ok_status();
}

// The object that vLLM's routes have inside the body.
Result<Json> read_inner(const http::Request& request, const char* key) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const Json* inner = json_find(body, key);
  if (inner != nullptr && inner->is_object()) return *inner;
  return invalid_argument("{} is {}; wanted an object", key, inner == nullptr ? "missing" : json_type_name(*inner));
}

using Packings = std::shared_ptr<PackingOfGroup>;

Status init(WeightControl& weights, const Packings& packings, const http::Request& request,
            const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json info, read_inner(request, "init_info"));
  ASSIGN_OR_RETURN(const TrainerGroup group, read_trainer_group(info));
  ASSIGN_OR_RETURN(const Packing packing, read_packing(info, {}));
  packings->set(group.name, packing);
  weights.join_group(group, answer(responder, R"({"message":"Weight transfer initialized"})"));
  return ok_status();
}

Status start(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  RETURN_IF_ERROR(refuse_unless(body, "is_checkpoint_format", true));
  const WeightsState state = weights.state();
  if (state.phase != WeightsState::Phase::kIdle) {
    return error(StatusCode::kConflict, "the state of the weights is '{}'; wanted 'idle' (/abort_weights_update)",
                 phase_name(state.phase));
  }
  responder->send({.body = R"({"message":"Weight update started"})"});
  return ok_status();
}

// One round: what it sends is staged, and nothing switches.
Status update(WeightControl& weights, const Packings& packings, const http::Request& request,
              const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(Json info, read_inner(request, "update_info"));
  RETURN_IF_ERROR(refuse_unless(info, "is_checkpoint_format", true));
  if (const Json* dtypes = json_find(info, "dtype_names"); dtypes != nullptr) info["dtypes"] = Json(*dtypes);
  ASSIGN_OR_RETURN(WeightPlan plan, read_weight_plan(info));
  ASSIGN_OR_RETURN(const Packing packing, read_packing(info, packings->of(plan.group)));
  RETURN_IF_ERROR(pack(packing, plan));
  weights.receive_and_complete(plan, {.group = plan.group, .last = false}, [responder](const auto& updated) {
    responder->send(updated.ok() ? http::Response{.body = R"({"message":"Weights updated"})"}
                                 : refusal(updated.status()));
  });
  return ok_status();
}

Status finish(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  LiveCompletion completion{.group = weights.state().group, .timeout_ms = kCompleteMs};
  RETURN_IF_ERROR(read_label(body, "weight_version", completion.label));
  ASSIGN_OR_RETURN(completion.policy, read_update_policy(body));
  weights.complete(std::move(completion), answer_updated(responder, "Weight update finished"));
  return ok_status();
}

Status world_size(WeightControl& weights, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  weights.inspect(R"({"what":"tensors"})", [responder](const auto& answers) {
    responder->send(answers.ok() ? http::Response{.body = fmt::format("{{\"world_size\":{}}}", answers->size())}
                                 : refusal(answers.status()));
  });
  return ok_status();
}

}  // namespace

void add_vllm_weight_routes(http::Server& server, WeightControl& weights) {
  const auto add = [&](const char* method, const char* pattern, WeightHandler handle) {
    add_weight_route(server, weights, method, pattern, std::move(handle));
  };
  const auto packings = std::make_shared<PackingOfGroup>();
  const auto packed = [&packings](auto handle) {
    return
        [packings, handle](WeightControl& control, const http::Request& request, const http::ResponderPtr& responder) {
          return handle(control, packings, request, responder);
        };
  };
  add("POST", "/pause", pause);
  add("POST", "/resume", resume);
  add("GET", "/is_paused", is_paused);
  add("POST", "/init_weight_transfer_engine", packed(init));
  add("POST", "/start_weight_update", start);
  add("POST", "/update_weights", packed(update));
  add("POST", "/finish_weight_update", finish);
  add("GET", "/get_world_size", world_size);
}

}  // namespace millrace::api
