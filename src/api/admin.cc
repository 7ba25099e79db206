// Orders of the operator: POST /abort_request, /flush_cache, /start_profile, /stop_profile.
#include <nlohmann/json.hpp>

#include "api/fields.h"
#include "api/order_fields.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

Status abort_request(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  std::string rid;
  bool all = false;
  RETURN_IF_ERROR(json_read(body, "rid", rid));
  RETURN_IF_ERROR(json_read(body, "abort_all", all));
  if (rid.empty() && !all) return invalid_argument("rid is missing; wanted a request's id, or abort_all: true");
  const std::size_t aborted = all ? context.state->live.abort_all() : context.state->live.abort(rid);
  responder->send({.body = fmt::format("{{\"aborted\":{}}}", aborted)});
  return ok_status();
}

std::string render_replies(const std::vector<wire::AdminReply>& replies) {
  std::string out = "{\"success\":true,\"replies\":[";
  for (std::size_t i = 0; i < replies.size(); ++i) {
    out += i ? ",{\"stage\":" : "{\"stage\":";
    json_append_string(out, replies[i].stage);
    out += ",\"message\":";
    json_append_string(out, replies[i].message);
    out += '}';
  }
  return out + "]}";
}

// All schedulers did it, or the answer is the error of the first that did not.
void answer_order(const http::ResponderPtr& responder, const std::vector<wire::AdminReply>& replies) {
  Status status;
  if (replies.empty()) status = Status(StatusCode::kUnavailable, "no scheduler answered");
  for (const wire::AdminReply& reply : replies) {
    if (status.ok() && reply.code != StatusCode::kOk) {
      status = Status(reply.code, fmt::format("{}: {}", reply.stage, reply.message));
    }
  }
  if (status.ok()) {
    responder->send({.body = render_replies(replies)});
  } else {
    responder->send(error_response(from_status(status)));
  }
}

void order(ApiContext& context, wire::AdminAction action, std::string argument, int64_t timeout_ms,
           const http::ResponderPtr& responder) {
  context.engine.admin(action, std::move(argument), timeout_ms,
                       [responder](std::vector<wire::AdminReply> replies) { answer_order(responder, replies); });
}

Status flush_cache(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const int64_t timeout_ms, read_flush_timeout_ms(request));
  order(context, wire::AdminAction::kFlushCache, "", timeout_ms, responder);
  return ok_status();
}

Status start_profile(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_order(request));
  RETURN_IF_ERROR(check_profile_fields(body));
  order(context, wire::AdminAction::kStartProfile, "", kProfileTimeoutMs, responder);
  return ok_status();
}

Status stop_profile(ApiContext& context, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  order(context, wire::AdminAction::kStopProfile, "", kProfileTimeoutMs, responder);
  return ok_status();
}

}  // namespace

void add_admin_routes(ApiContext& context) {
  add_post_route(context, "/abort_request", abort_request);
  for (const char* method : {"GET", "POST"}) {
    add_fallible_route(context, method, "/flush_cache", flush_cache, http::Access::kAdmin);
    add_fallible_route(context, method, "/start_profile", start_profile, http::Access::kAdmin);
    add_fallible_route(context, method, "/stop_profile", stop_profile, http::Access::kAdmin);
  }
}

}  // namespace millrace::api
