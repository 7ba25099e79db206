// stop_after: whether the newest known token ends the request. The order of the checks is the contract:
//   1. stop_token_ids            -> kStop, matched_token (ignore_eos does not touch these)
//   2. the model's end tokens, unless ignore_eos  -> kStop, matched_token
//   3. max_tokens generated, or the context is full -> kLength
// So a stop token that is also the last permitted one is a stop. (An abort comes before all of them; so do stop
// strings, which the worker `generate` finds in the text, stages/generating/token_text.h.)
//
// Thread safety: a free function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "scheduler/sequence.h"

namespace millrace {

std::optional<wire::Finish> stop_after(const Sequence& sequence, std::span<const int32_t> eos_token_ids,
                                       int32_t context_length);

// Whether `token` ends a request: 1 and 2.
bool stops(const wire::SamplingParams& sampling, std::span<const int32_t> eos_token_ids, int32_t token);

// Whether the token that a batch in flight samples is the last one, whatever it will be.
inline bool ends_in_flight(const Sequence& sequence, int32_t context_length) {
  return sequence.pending > 0 &&
         (sequence.drawn() >= sequence.sampling.max_tokens || sequence.length() >= context_length);
}

// The tokens that would stop the request as 1 or 2 do, each once: they are not drawn below min_tokens.
std::vector<int32_t> stopping_tokens(const wire::SamplingParams& sampling, std::span<const int32_t> eos_token_ids,
                                     int32_t vocab_size);

// The end of a request that failed with `status`.
wire::Finish error_finish(const Status& status);
// The end of one that was aborted.
inline wire::Finish aborted_finish() { return {.reason = wire::FinishReason::kAborted}; }

}  // namespace millrace
