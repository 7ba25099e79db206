#include "http/admission.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "http/target.h"

namespace millrace::http {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxShownBytes = 100;  // of what a client sent, in an error
constexpr std::string_view kCorsHeaders = "authorization, content-type, x-request-id, traceparent";

bool is_json(const std::string* content_type) {
  if (content_type == nullptr) return false;
  std::string_view text = *content_type;
  text = text.substr(0, text.find(';'));
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return equals_ignore_case(text, "application/json");
}

// The names that the page asks for, where they are a list of field names: an SDK sends headers of its own.
std::string allowed_headers(const std::string* wanted) {
  const auto in_list = [](char c) { return c == ',' || c == ' ' || is_token_char(c); };
  const bool list = wanted != nullptr && !wanted->empty() && std::all_of(wanted->begin(), wanted->end(), in_list);
  return list ? *wanted : std::string(kCorsHeaders);
}

// For an origin that is allowed.
Response preflight(const RequestHead& head, const std::string& allow) {
  Response response{.status = 200, .content_type = ""};  // some clients take a 204 for a failure
  response.headers.add("Access-Control-Allow-Methods", allow);
  response.headers.add("Access-Control-Allow-Headers",
                       allowed_headers(head.headers.find("access-control-request-headers")));
  response.headers.add("Access-Control-Max-Age", "600");
  return response;
}

HttpError check_body(const ServerOptions& options, const Route& route, const RequestHead& head) {
  if (!head.has_body()) return {};
  uint64_t limit = body_limit(options, &route);
  if (head.content_length > limit) {
    return {413, fmt::format("request body is {} bytes; the limit is {}", head.content_length, limit)};
  }
  const std::string* coding = head.headers.find("content-encoding");
  if (coding != nullptr && !equals_ignore_case(*coding, "identity")) {
    return {415, "Content-Encoding is not 'identity'; compressed bodies are not accepted"};
  }
  if (const std::string* type = head.headers.find("content-type"); route.require_json && !is_json(type)) {
    const std::string seen = type ? fmt::format("is '{}'", type->substr(0, kMaxShownBytes)) : "is missing";
    return {415, fmt::format("the header Content-Type {}; wanted 'Content-Type: application/json'", seen)};
  }
  return {};
}

}  // namespace

Response render_error(const ServerOptions& options, const Route* route, const HttpError& error,
                      std::string_view request_id) {
  Response response{.status = error.status};
  if (route != nullptr && route->render_error) {
    response = route->render_error(error.status, error.message, request_id);
  } else if (options.render_error) {
    response.body = options.render_error(error.status, error.message);
  } else {
    response.body = "{\"error\":{\"message\":";
    json_append_string(response.body, error.message);
    response.body += fmt::format(",\"code\":{}}}}}", error.status);
  }
  if (error.status == 503) response.headers.set("Retry-After", "1");
  if (error.status == 401) response.headers.set("WWW-Authenticate", "Bearer");
  return response;
}

uint64_t body_limit(const ServerOptions& options, const Route* route) {
  if (route != nullptr && route->max_body_bytes > 0) return route->max_body_bytes;
  return options.limits.body_bytes;
}

std::optional<Response> admit(const ServerOptions& options, const Gate& gate, const RouteTable::Match& match,
                              const RequestHead& head, bool over_unix_socket, std::string_view request_id) {
  auto refuse = [&](const HttpError& error) { return render_error(options, match.family, error, request_id); };
  // A web page, against which the Host is checked, cannot reach a Unix socket.
  if (HttpError error = gate.check_host(head); error && !over_unix_socket) return refuse(error);
  // A preflight carries no credentials by design and runs no handler.
  if (Gate::is_preflight(head) && match.path_known && !gate.cors_origin(head).empty()) {
    return preflight(head, match.allow);
  }
  if (HttpError error = gate.check_access(head, match.route, over_unix_socket)) return refuse(error);
  if (head.method == "OPTIONS" && match.route == nullptr && (match.path_known || head.path == "*")) {
    Response response{.status = 204, .content_type = ""};
    if (match.path_known) response.headers.add("Allow", match.allow);
    return response;
  }
  if (!match.path_known) return refuse({404, fmt::format("no route for this path: {} {}", head.method, head.path)});
  if (match.route == nullptr) {
    Response response = refuse({405, fmt::format("method is {}; wanted {}", head.method, match.allow)});
    response.headers.add("Allow", match.allow);
    return response;
  }
  if (HttpError error = gate.check_origin(head, *match.route)) return refuse(error);
  if (HttpError error = check_body(options, *match.route, head)) return refuse(error);
  return std::nullopt;
}

const std::string* usable_request_id(const RequestHead& head) {
  const std::string* id = head.headers.find("x-request-id");
  if (id == nullptr || id->empty() || id->size() > kMaxRequestIdBytes) return nullptr;
  for (char c : *id) {
    bool fine = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' ||
                c == ':' || c == '-';
    if (!fine) return nullptr;
  }
  return id;
}

}  // namespace millrace::http
