#include "api/command_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/admin_fields.h"
#include "api/error.h"
#include "api/fields.h"

namespace millrace::api {
namespace {

std::string render(const std::vector<wire::AdminReply>& replies) {
  std::string out = "\"replies\":[";
  for (std::size_t i = 0; i < replies.size(); ++i) {
    out += i ? ",{\"stage\":" : "{\"stage\":";
    json_append_string(out, replies[i].stage);
    fmt::format_to(std::back_inserter(out), ",\"ok\":{},\"message\":", replies[i].code == StatusCode::kOk);
    json_append_string(out, replies[i].message);
    out += '}';
  }
  return out + ']';
}

// A stage to which the order means nothing (it has no cache) is no failure, as long as it means something to one.
Status outcome(const std::vector<wire::AdminReply>& replies) {
  const wire::AdminReply* unsupported = nullptr;
  bool done = false;
  for (const wire::AdminReply& reply : replies) {
    done = done || reply.code == StatusCode::kOk;
    if (reply.code == StatusCode::kUnsupported) {
      unsupported = &reply;
    } else if (reply.code != StatusCode::kOk) {
      return Status(reply.code, fmt::format("{}: {}", reply.stage, reply.message));
    }
  }
  if (done) return ok_status();
  if (unsupported == nullptr) return Status(StatusCode::kUnavailable, "no stage answered");
  return Status(StatusCode::kUnsupported, fmt::format("{}: {}", unsupported->stage, unsupported->message));
}

void answer(const http::ResponderPtr& responder, const std::vector<wire::AdminReply>& replies) {
  const Status status = outcome(replies);
  if (status.ok()) {
    responder->send({.body = "{\"success\":true," + render(replies) + "}"});
    return;
  }
  http::Response response = error_response(from_status(status));
  response.body.insert(response.body.rfind('}'), "," + render(replies));
  responder->send(std::move(response));
}

void send_command(const SendCommand& send, wire::AdminAction action, int64_t timeout_ms,
                  const http::ResponderPtr& responder) {
  send(action, timeout_ms, [responder](std::vector<wire::AdminReply> replies) { answer(responder, replies); });
}

Status flush_cache(const SendCommand& send, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const int64_t timeout_ms, read_flush_timeout_ms(request));
  send_command(send, wire::AdminAction::kFlushCache, timeout_ms, responder);
  return ok_status();
}

Status start_profile(const SendCommand& send, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  RETURN_IF_ERROR(check_profile_fields(body));
  send_command(send, wire::AdminAction::kStartProfile, kProfileTimeoutMs, responder);
  return ok_status();
}

Status stop_profile(const SendCommand& send, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  send_command(send, wire::AdminAction::kStopProfile, kProfileTimeoutMs, responder);
  return ok_status();
}

}  // namespace

void add_command_routes(http::Server& server, SendCommand send) {
  using Handler = Status (*)(const SendCommand&, const http::Request&, const http::ResponderPtr&);
  const auto add = [&server, &send](const char* pattern, Handler handle) {
    for (const char* method : {"GET", "POST"}) {
      server.add_route({.method = method,
                        .pattern = pattern,
                        .access = http::Access::kAdmin,
                        .handler = [send, handle](auto request, auto responder) {
                          const Status status = handle(send, *request, responder);
                          if (!status.ok()) responder->send(error_response(field_error(status)));
                        }});
    }
  };
  add("/flush_cache", flush_cache);
  add("/start_profile", start_profile);
  add("/stop_profile", stop_profile);
}

}  // namespace millrace::api
