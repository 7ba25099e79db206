#include "api/messages_error.h"

#include "base/json.h"

namespace millrace::api {
namespace {

std::string_view type_of(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string render_messages_error(const ApiError& error, std::string_view request_id) {
  std::string out = R"({"type":"error","error":{"type":")";
  out += type_of(error.http_status);
  out += R"(","message":)";
  // Agents look for these words, and shorten the conversation.
  json_append_string(out, error.code == kContextExceeded ? "prompt is too long: " + error.message : error.message);
  // By these details the SDK's tool runner sends complete conversations instead.
  if (error.param == "thread") {
    out += R"(,"details":{"error_code":"thread_unsupported_request","unsupported":["thread"]})";
  }
  out += R"(},"request_id":)";
  json_append_string(out, request_id);
  return out + "}";
}

http::Response messages_error_response(const ApiError& error, std::string_view request_id) {
  http::Response response = error_response(error);
  response.body = render_messages_error(error, request_id);
  response.headers.set(kRequestIdField, std::string(request_id));
  return response;
}

}  // namespace millrace::api
