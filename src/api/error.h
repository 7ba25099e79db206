// Errors as OpenAI clients expect them: {"error": {"message", "type", "param", "code"}} with a real HTTP status.
// Thread safety: free functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/message.h"

namespace millrace::api {

// Codes. At the first one agents cut their history and try again, so no other limit has it.
inline constexpr std::string_view kContextExceeded = "context_length_exceeded";
inline constexpr std::string_view kLimitExceeded = "limit_exceeded";

// A prompt and a model's context, in tokens.
struct ContextLengths {
  int64_t prompt = 0;
  int64_t context = 0;
};

struct ApiError {
  int http_status = 500;
  std::string message;
  std::string param;                      // the request field at fault; empty: null
  std::string code;                       // "model_not_found", "context_length_exceeded", ...; empty: null
  std::optional<ContextLengths> lengths;  // of a prompt over the context, where it was counted
};

// "invalid_request_error", "overloaded_error", ...: the kind of an error in OpenAI's words, by its status.
std::string_view error_type(int http_status);

// A malformed or out-of-range field of the request: 400.
ApiError bad_request(std::string message, std::string param = "");
// An error of the engine. The codes map as in base/status.h, but kTooLarge is a 400, as clients expect of a prompt
// over the context; what else is too large (a grammar, pictures, the work of a chat template) has kLimitExceeded.
ApiError from_status(const Status& status);

// {"error":{...}}, with llama.cpp's n_prompt_tokens and n_ctx where the lengths are known.
std::string render_error(const ApiError& error);
// The same for errors that the HTTP server answers by itself.
std::string render_http_error(int http_status, std::string_view message);
// With Retry-After where trying again makes sense (429, 503).
http::Response error_response(const ApiError& error);

}  // namespace millrace::api
