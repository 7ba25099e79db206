#include "api/error.h"

#include <fmt/core.h>

#include <cinttypes>
#include <cstdio>

#include "base/json.h"

namespace millrace::api {
namespace {

constexpr std::string_view kRetryAfterSeconds = "1";
// OpenAI's clients look for the code kContextExceeded, llama.cpp's for this type.
constexpr std::string_view kContextExceededType = "exceed_context_size_error";

// The context is exceeded by the tokens of a prompt (stages/generating/lengths.cc, in OpenAI's words) or already by its
// bytes (stages/prompt_encoder.cc). A status has no further code that distinguishes it from other limits.
bool is_of_context(std::string_view message) {
  return message.find("This model's maximum") != std::string_view::npos ||
         message.find("more than fits the model's context") != std::string_view::npos;
}

std::optional<ContextLengths> lengths_in(const std::string& message) {
  const std::size_t begin = message.find("This model's maximum context length is ");
  if (begin == std::string::npos) return std::nullopt;
  ContextLengths out;
  const int read = std::sscanf(message.c_str() + begin,
                               "This model's maximum context length is %" SCNd64
                               " tokens. However, the prompt has %" SCNd64 " tokens",
                               &out.context, &out.prompt);
  return read == 2 ? std::optional(out) : std::nullopt;
}

int http_status_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kTooLarge:
    case StatusCode::kUnsupported:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kConflict:
      return 409;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadline:
      return 504;
    case StatusCode::kCancelled:
      return 499;
    case StatusCode::kUnauthenticated:
      return 401;
    case StatusCode::kPermissionDenied:
      return 403;
    case StatusCode::kInternal:
      return 500;
  }
  return 500;
}

void append_nullable(std::string& out, std::string_view name, const std::string& value) {
  out += ",\"";
  out += name;
  out += "\":";
  if (value.empty()) {
    out += "null";
  } else {
    json_append_string(out, value);
  }
}

}  // namespace

std::string_view error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

ApiError bad_request(std::string message, std::string param) {
  return {.http_status = 400, .message = std::move(message), .param = std::move(param)};
}

ApiError from_status(const Status& status) {
  ApiError error{.http_status = http_status_of(status.code()), .message = status.message()};
  if (status.code() == StatusCode::kTooLarge) {
    error.code = is_of_context(status.message()) ? kContextExceeded : kLimitExceeded;
    error.lengths = lengths_in(status.message());
  }
  return error;
}

std::string render_error(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  json_append_string(out, error.message);
  out += ",\"type\":\"";
  out += error.code == kContextExceeded ? kContextExceededType : error_type(error.http_status);
  out += '"';
  append_nullable(out, "param", error.param);
  append_nullable(out, "code", error.code);
  if (error.lengths) {
    out += fmt::format(R"(,"n_prompt_tokens":{},"n_ctx":{})", error.lengths->prompt, error.lengths->context);
  }
  out += "}}";
  return out;
}

std::string render_http_error(int http_status, std::string_view message) {
  ApiError error{.http_status = http_status, .message = std::string(message)};
  if (http_status == 401) error.code = "invalid_api_key";
  return render_error(error);
}

http::Response error_response(const ApiError& error) {
  http::Response response{.status = error.http_status, .body = render_error(error)};
  if (error.http_status == 429 || error.http_status == 503) {
    response.headers.set("Retry-After", std::string(kRetryAfterSeconds));
  }
  return response;
}

}  // namespace millrace::api
