// The bodies of Ollama's /api/chat and /api/generate as the body of a chat, which the readers of /v1/chat/completions
// read: one way from a conversation to the engine. What only these endpoints have is checked here, so messages name
// their fields.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

struct OllamaRequest {
  std::string chat;                 // the translated body, keys in the client's sequence
  std::optional<std::string> text;  // of /api/generate: the prompt itself, which no template changes
  bool empty = false;               // there is no prompt: the client asks that the model be loaded
  bool stream = true;
  std::optional<int32_t> logprobs;  // so many of the likeliest beside each token
};

// `text`: of the body, as it came. kInvalidArgument or kUnsupported with the field's name first.
Result<OllamaRequest> translate_ollama_chat(const Json& body, const std::string& text, const ModelFacts& model);
Result<OllamaRequest> translate_ollama_generate(const Json& body, const std::string& text, const ModelFacts& model);

}  // namespace millrace::api
