// share_prefill: how the prefill tokens of one step are shared among the requests that still prefill.
//
// Half goes to the oldest, the other half to those with the least left to do, and what nobody needs goes back to the
// oldest. So a very long prompt cannot hold up the short ones behind it (they have half the budget), and the short ones
// cannot hold it up (it has the other half and, once it is the oldest, a known end).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

// `remaining`: tokens left to prefill, oldest request first, each > 0. Returns one share for each, 0 <= share <=
// remaining; the sum is min(budget, sum of remaining).
std::vector<int32_t> share_prefill(std::span<const int32_t> remaining, int32_t budget);

}  // namespace millrace
