// How a transcript ends, for uploads (transcription_format.h) and for what is spoken in /v1/realtime.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>

#include "api/reply_format.h"
#include "base/status.h"

namespace millrace::api {

// A transcript that is not complete would be taken for one, so it is an error. kCancelled: it was aborted. kTooLarge:
// the model's context ended it. kInternal: `limit` did, the server's for audio of this length; nullopt: there is none.
Status check_transcript_end(const ChoiceState& choice, int64_t context_length, std::optional<int64_t> limit = {});

}  // namespace millrace::api
