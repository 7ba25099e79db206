#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace millrace {
namespace {

std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  constexpr std::size_t kMaxBytes = 64, kLeastContained = 3;
  name = name.substr(0, kMaxBytes);
  std::string_view best = known.front();
  std::size_t best_cost = SIZE_MAX;
  for (std::string_view candidate : known) {
    const bool contained = std::min(name.size(), candidate.size()) >= kLeastContained &&
                           (name.find(candidate) != name.npos || candidate.find(name) != candidate.npos);
    const std::size_t cost = edits(name, candidate) + (contained ? 0 : kMaxBytes);
    if (cost < best_cost) best = candidate, best_cost = cost;
  }
  return best;
}

}  // namespace millrace
