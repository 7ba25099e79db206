// Forced runs: tokens that a grammar leaves no choice about, computed in one step like a prompt's, so that the weights
// are read once for all of them.
//
//   batch N draws t; its result names the run a b c that the grammar forces behind t (SampledToken::forced)
//   overlap: batch N+1, in flight by then, has the row of t and draws a. N+2 has the rows a b c and draws what follows.
//   without: N+1 has the rows t a b c.
//
// The runner looks ahead, as it alone knows what a token in flight became; the scheduler decides how many of the run
// become rows. They are tokens that the batch draws, like the one behind its last row: taken when it is settled, one
// delta each, with the checks of stop.h in between. A token that ends the request is never a row, so none is computed
// behind it. Their rows need no vocabulary head, and a row has the same bits in any chunk: nothing but the number of
// steps changes.
//
// Thread safety: free functions; the scheduler's thread only.
#pragma once

#include <cstdint>
#include <span>

#include "runner/runner.h"
#include "scheduler/options.h"
#include "scheduler/sequence.h"

namespace millrace {

// How far behind the token that the next batch draws for it the runner may look.
int32_t forced_limit(const Sequence& sequence, const SchedulerOptions& options, int32_t context_length);

// How many forced tokens the next batch may compute behind the row of the newest token; `most`: no more.
int32_t forced_rows(const Sequence& sequence, const SchedulerOptions& options, int32_t context_length, int32_t most);

// Makes the next `rows` of the run tokens of the sequence that a batch draws.
void append_forced(Sequence& sequence, int32_t rows);

// The token behind the known ones has become known; `behind`: the run behind it, as its result has it.
void pass_forced(Sequence& sequence, std::span<const int32_t> behind);

}  // namespace millrace
