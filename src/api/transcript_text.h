// The text of a transcript and how it ends, for uploads (transcription_format.h) and for what is spoken in
// /v1/realtime.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/reply_format.h"
#include "base/status.h"

namespace millrace::api {

// Models begin an answer with a space or end it with a line break now and then: no part of a transcript.
std::string_view trimmed_transcript(std::string_view text);
// What the client of a stream gets of the text that comes next, which `so_far` grows by: no space before the first
// word.
std::string_view append_transcript(std::string& so_far, std::string_view fresh);

// A transcript that is not complete would be taken for one, so it is an error. kCancelled: it was aborted. kTooLarge:
// the model's context ended it. kInternal: `limit` did, the server's for audio of this length; nullopt: there is none.
Status check_transcript_end(const ChoiceState& choice, int64_t context_length, std::optional<int64_t> limit = {});

}  // namespace millrace::api
