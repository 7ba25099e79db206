// The body of a request to /v1/responses as the body of a chat (api/translated_chat.h). What only this endpoint has is
// checked here, so messages name its fields.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/media_parts.h"
#include "base/json.h"
#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

struct ResponsesBody {
  std::string chat;  // keys in the client's sequence
  // include has message.output_text.logprobs: so many of the likeliest are shown at each token.
  std::optional<int64_t> top_logprobs;
  bool background = false;
};

// `text`: of the body, as it came. `media` takes its pictures and audio. kInvalidArgument or kUnsupported with the
// field's name first.
Result<ResponsesBody> translate_responses(const Json& body, const std::string& text, MediaParts& media);

// The members of the answer that repeat the request, joined by commas: instructions, tools, temperature, ... Of a body
// that translate_responses() took; `sampling`: what is used; `stored`: whether the answer is kept.
std::string request_members(const std::string& text, const wire::SamplingParams& sampling, bool stored);

}  // namespace millrace::api
