#include "scheduler/share.h"

#include <algorithm>
#include <numeric>

namespace millrace {

std::vector<int32_t> share_prefill(std::span<const int32_t> remaining, int32_t budget) {
  std::vector<int32_t> shares(remaining.size(), 0);
  if (remaining.empty() || budget <= 0) return shares;
  shares[0] = std::min(remaining[0], budget - budget / 2);
  budget -= shares[0];

  std::vector<std::size_t> shortest(remaining.size());
  std::iota(shortest.begin(), shortest.end(), 0);
  std::ranges::stable_sort(shortest, {}, [&](std::size_t i) { return remaining[i]; });
  for (std::size_t i : shortest) {
    const int32_t more = std::min(remaining[i] - shares[i], budget);
    shares[i] += more;
    budget -= more;
  }
  return shares;
}

DecodeShares share_decodes(int32_t decoding, int32_t depth) {
  DecodeShares shares;
  shares.batches = std::clamp(decoding / kMinDecodeShare, 1, std::max(1, depth - 1));
  shares.rows = std::max(1, (decoding + shares.batches - 1) / shares.batches);
  return shares;
}

}  // namespace millrace
