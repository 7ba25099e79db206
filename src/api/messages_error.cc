#include "api/messages_error.h"

#include "base/json.h"

namespace millrace::api {
namespace {

// OpenAI's words, but for two.
std::string_view type_of(int http_status) {
  if (http_status == 413) return "request_too_large";
  const std::string_view type = error_type(http_status);
  return type == "server_error" ? "api_error" : type;
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
