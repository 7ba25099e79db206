// What a mask leaves of a row of logits: the row to draw from, or its greedy token without such a row. In both a broken
// logit (NaN, +inf) fails, also where the mask forbids it.
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "grammar/token_trie.h"

namespace millrace {

// The token of a mask that allows no other.
std::optional<int32_t> only_token(const grammar::TokenMask& mask);

// Into `out`: the allowed logits, and -inf for the others. The mask has a bit for each logit, at least.
Status fill_masked_row(std::span<const float> logits, const grammar::TokenMask& mask, std::vector<float>& out);

// greedy_token of that row, with its errors.
Result<int32_t> masked_greedy_token(std::span<const float> logits, const grammar::TokenMask& mask);

}  // namespace millrace
