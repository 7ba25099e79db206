// From a conversation to what the engine gets: a chat, which the readers of /v1/chat/completions read.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/realtime/conversation.h"
#include "api/realtime/session_config.h"
#include "stages/engine.h"

namespace millrace::api {

struct RealtimeRequest {
  std::vector<GenerateRequest> requests;     // one
  int64_t audio_rows = 0, picture_rows = 0;  // of its prompt
};

Result<RealtimeRequest> make_realtime_request(const Conversation& conversation, const SessionConfig& config,
                                              const ModelFacts& model);

}  // namespace millrace::api
