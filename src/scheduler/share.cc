#include "scheduler/share.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

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

void cut_beside_ends(std::span<const int32_t> remaining, int32_t decodes, std::vector<int32_t>& shares) {
  CHECK(shares.size() == remaining.size());
  int32_t ending = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) ending += shares[i] == remaining[i] ? shares[i] : 0;
  if (ending == 0) return;
  int32_t left = std::max(ending + decodes, kMinRowsBesideEnds);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == remaining[i]) continue;
    shares[i] = std::min(shares[i], left);
    left -= shares[i];
  }
}

DecodeShares share_decodes(int32_t decoding, int32_t depth) {
  DecodeShares shares;
  shares.batches = std::clamp(decoding / kMinDecodeShare, 1, std::max(1, depth - 1));
  shares.rows = std::max(1, (decoding + shares.batches - 1) / shares.batches);
  return shares;
}

}  // namespace millrace
