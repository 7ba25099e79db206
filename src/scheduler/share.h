// How the rows of a step are shared.
//
// share_prefill: how the prefill tokens of one step are shared among the requests that still prefill.
//
// Half goes to the oldest, the other half to those with the least left to do, the oldest among them (ties: the older
// one). So a very long prompt cannot hold up the short ones behind it (they have half the budget), and the short ones
// cannot hold it up (it has the other half and, once it is the oldest, a known end). Prompts of one length are computed
// one after the other: side by side, each would end when the last one does.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

// `remaining`: tokens left to prefill, oldest request first, each > 0. Returns one share for each, 0 <= share <=
// remaining; the sum is min(budget, sum of remaining).
std::vector<int32_t> share_prefill(std::span<const int32_t> remaining, int32_t budget);

// Rows of prompts that go on in a step in which others end: at least so many, where they had as many.
inline constexpr int32_t kMinRowsBesideEnds = 64;

// Cuts `shares` of prompts that go on (share < remaining), where others end: to as many rows as the step has for
// `decodes` and for those that end, or to kMinRowsBesideEnds. A first token comes with its step, so it waits at most
// twice as long as the step would take without them, or for that minimum. The oldest comes first.
void cut_beside_ends(std::span<const int32_t> remaining, int32_t decodes, std::vector<int32_t>& shares);

inline constexpr int32_t kMinDecodeShare = 2;  // decodes of a micro-batch, where there are several

// How the decodes of a runner without token_in_flight are divided: each is in one batch only until its token is back,
// so it takes several batches to keep all ranges of a chain at work.
struct DecodeShares {
  int32_t batches = 1;  // with decodes, in flight at the same time at most
  int32_t rows = 1;     // decodes of one batch at most
};
// `decoding` sequences over `depth` batches in flight: over depth - 1 micro-batches of equal size, because one of the
// batches in flight waits for a range; over fewer where they would get fewer than kMinDecodeShare each. A micro-batch
// reads all weights of a range whatever its size, so two small ones cost what one costs that has them all.
DecodeShares share_decodes(int32_t decoding, int32_t depth);

}  // namespace millrace
