// GET /slots, for the dashboards and balancers of llama.cpp: a slot for each request that may run at a time. Which slot
// a request has means nothing here: those that run stand first, in the order of the schedulers' own lists.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/fields.h"
#include "api/live_view.h"
#include "api/routes.h"
#include "base/json.h"

namespace millrace::api {
namespace {

constexpr int64_t kMaxListedSlots = 4096;  // of all schedulers

struct Slots {
  std::string list;  // objects, separated by commas
  int64_t count = 0, idle = 0;

  void add(const std::string& more, int32_t context_length) {
    if (count > 0) list += ',';
    list += fmt::format(R"({{"id":{},"n_ctx":{},"speculative":false,{}}})", count++, context_length, more);
  }
};

// One that decodes or computes its prompt.
void add_running(Slots& out, const Json& request, int32_t context_length) {
  const auto number = [&request](const char* name) { return request.value(name, int64_t{0}); };
  const int64_t decoded = number("output_tokens"), most = number("max_tokens");
  out.add(
      fmt::format(R"("id_task":{},"is_processing":true,"n_prompt_tokens":{},"n_prompt_tokens_cache":{},)"
                  R"("params":{{"n_predict":{}}},"next_token":{{"has_next_token":true,"n_decoded":{},"n_remain":{}}})",
                  number("id"), number("prompt_tokens"), number("cached_tokens"), most, decoded,
                  std::max<int64_t>(0, most - decoded)),
      context_length);
}

// `each`: requests that a scheduler may run at a time.
void add_scheduler(Slots& out, const Json& state, int64_t each, int32_t context_length) {
  int64_t running = 0;
  for (const Json& request : state.value("requests", Json::array())) {
    const std::string what = request.value("state", "");
    if (what != "decoding" && what != "prefilling") continue;
    if (out.count >= kMaxListedSlots) return;
    add_running(out, request, context_length);
    ++running;
  }
  for (; running < each && out.count < kMaxListedSlots; ++running) {
    out.add(R"("is_processing":false)", context_length);
    ++out.idle;
  }
}

Slots slots_of(const ApiContext& context, const std::vector<wire::AdminReply>& replies) {
  const auto options = parse_json(context.options_json);
  const int64_t each = options.ok() ? options->value("max-running-requests", int64_t{0}) : 0;
  Slots out;
  for (const wire::AdminReply& reply : replies) {
    if (reply.code != StatusCode::kOk) continue;
    const auto state = parse_json(reply.message);
    if (state.ok() && state->is_object()) add_scheduler(out, *state, each, context.engine.model().context_length);
  }
  return out;
}

Status slots(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  std::string fail;
  const bool wants_idle = request.query_value("fail_on_no_slot", fail) && fail != "0";
  context.engine.admin(wire::AdminAction::kShowState, kLiveTimeoutMs,
                       [&context, responder, wants_idle](const std::vector<wire::AdminReply>& replies) {
                         const Slots found = slots_of(context, replies);
                         if (!wants_idle || found.idle > 0) {
                           responder->send({.body = "[" + found.list + "]"});
                           return;
                         }
                         const Status none = error(StatusCode::kUnavailable, "no slot is idle, of {}", found.count);
                         responder->send(error_response(field_error(none)));
                       });
  return ok_status();
}

}  // namespace

void add_slot_route(ApiContext& context) { add_fallible_route(context, "GET", "/slots", slots, http::Access::kUser); }

}  // namespace millrace::api
