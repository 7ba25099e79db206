// Errors as Ollama's clients expect them: {"error": "..."} with a real HTTP status.
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "api/error.h"
#include "http/message.h"

namespace millrace::api {

enum class OllamaEndpoint : uint8_t { kChat, kGenerate };

// {"error":"..."}. A picture goes to the engine as a part of its message; here it has the name that the client gave it.
std::string render_ollama_error(const ApiError& error, OllamaEndpoint endpoint);
// The same with its status, and Retry-After where trying again makes sense.
http::Response ollama_error_response(const ApiError& error, OllamaEndpoint endpoint = OllamaEndpoint::kChat);

}  // namespace millrace::api
