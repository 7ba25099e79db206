// POST /abort_request, and the commands of api/command_routes.h.
#include <nlohmann/json.hpp>

#include "api/command_routes.h"
#include "api/fields.h"
#include "api/routes.h"
#include "api/weights.h"

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

}  // namespace

void add_admin_routes(ApiContext& context) {
  add_post_route(context, "/abort_request", abort_request);
  add_command_routes(context.server,
                     [&engine = context.engine](wire::AdminAction action, int64_t timeout_ms, auto done) {
                       engine.admin(action, timeout_ms, std::move(done));
                     });
  if (WeightControl* weights = context.engine.weights()) {
    add_weight_routes(context.server, *weights, [state = context.state] { state->live.abort_all(); });
  }
}

}  // namespace millrace::api
