// The body of a request to /v1/messages as the body of a chat, which the readers of /v1/chat/completions read: one way
// from a conversation to the engine. What only these endpoints have is checked here, so messages name their fields.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "api/media_parts.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

struct ChatBody {
  std::string text;               // keys in the client's sequence
  bool thinking_omitted = false;  // thinking.display: its blocks come without their text
};

// `text`: of the body, as it came. `media` takes its pictures. kInvalidArgument or kUnsupported with the field's name
// first.
Result<ChatBody> translate_messages(const Json& body, const std::string& text, const ModelFacts& model,
                                    MediaParts& media);

}  // namespace millrace::api
