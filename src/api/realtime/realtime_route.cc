// GET /v1/realtime: OpenAI's Realtime API, over a WebSocket.
#include <algorithm>

#include "api/fields.h"
#include "api/realtime/books.h"
#include "api/realtime/realtime_session.h"

namespace millrace::api {
namespace {

constexpr std::string_view kProtocol = "realtime";

bool wants_beta(const http::Headers& headers) {
  for (const http::Header& field : headers) {
    if (http::equals_ignore_case(field.name, "openai-beta") && field.value.find("realtime=v1") != std::string::npos) {
      return true;
    }
    if (http::equals_ignore_case(field.name, "sec-websocket-protocol") &&
        field.value.find("openai-beta.realtime-v1") != std::string::npos) {
      return true;
    }
  }
  return false;
}

Result<std::string> read_model(const http::Request& request, const ModelNames& names) {
  for (const char* key : {"intent", "call_id"}) {
    std::string value;
    if (request.query_value(key, value)) {
      return error(StatusCode::kUnsupported, "{} is not supported in the URL; wanted model alone", key);
    }
  }
  std::string name;
  return request.query_value("model", name) ? names.resolve(name) : names.resolve(std::nullopt);
}

http::WebSocketAnswer open(ApiContext& context, const std::shared_ptr<RealtimeBooks>& books,
                           const http::Request& request, std::shared_ptr<http::WebSocket> socket) {
  const std::string* traceparent = request.headers.find("traceparent");
  const http::RequestLabel label{request.method, request.path, request.request_id, traceparent ? *traceparent : ""};
  const auto refused = [&](const Status& why) {
    note_refusal(context, label, why);
    return error_response(field_error(why));
  };
  Result<std::string> model = read_model(request, context.names);
  if (!model.ok()) return refused(model.status());
  auto share = SessionShare::take(books);
  if (!share) {
    return refused(
        error(StatusCode::kUnavailable, "{} sessions are open; wanted fewer: try again later", kMaxRealtimeSessions));
  }
  const RealtimeDialect& dialect = wants_beta(request.headers) ? kRealtimeBeta : kRealtime;
  return std::make_shared<RealtimeSession>(
      context, std::move(socket), RealtimeSession::Client{label, *std::move(model), dialect}, std::move(share));
}

}  // namespace

void add_realtime_routes(ApiContext& context) {
  auto owned = std::make_shared<std::pair<std::shared_ptr<ApiState>, RealtimeBooks>>(
      std::piecewise_construct, std::forward_as_tuple(context.state), std::forward_as_tuple(context.state->metrics));
  const std::shared_ptr<RealtimeBooks> books(owned, &owned->second);  // its metrics live as long as it does
  context.server.add_route(
      {.method = "GET",
       .pattern = "/v1/realtime",
       .same_origin = true,  // a page of elsewhere may open a WebSocket to here without CORS
       .websocket = [&context, books](const http::Request& request,
                                      auto socket) { return open(context, books, request, std::move(socket)); },
       .websocket_protocol = std::string(kProtocol)});
}

}  // namespace millrace::api
