#include "base/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "base/status.h"

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

constexpr std::size_t kMaxBytes = 64;
constexpr std::size_t kLeastContained = 3;  // bytes of a name that another one contains
constexpr std::size_t kFewNames = 8;

bool one_contains_the_other(std::string_view a, std::string_view b) {
  return std::min(a.size(), b.size()) >= kLeastContained && (a.find(b) != a.npos || b.find(a) != b.npos);
}

// A third of the letters, or two, may differ; but not all of them.
bool is_near(std::string_view a, std::string_view b) {
  const std::size_t most = std::max<std::size_t>(2, std::max(a.size(), b.size()) / 3);
  const std::size_t wrong = edits(a, b);
  return one_contains_the_other(a, b) || (wrong <= most && wrong < std::min(a.size(), b.size()));
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  name = name.substr(0, kMaxBytes);
  CHECK(!known.empty());
  std::string_view best = known.front();
  std::size_t best_cost = SIZE_MAX;
  for (std::string_view candidate : known) {
    const std::size_t cost = edits(name, candidate) + (one_contains_the_other(name, candidate) ? 0 : kMaxBytes);
    if (cost < best_cost) best = candidate, best_cost = cost;
  }
  return best;
}

std::string suggestion(std::string_view name, std::span<const std::string_view> known) {
  if (known.empty()) return "";
  const std::string_view nearest = nearest_name(name, known);
  if (is_near(name.substr(0, kMaxBytes), nearest)) return fmt::format("; perhaps '{}'", nearest);
  if (known.size() <= kFewNames) return fmt::format("; there are '{}'", fmt::join(known, "', '"));
  return "";
}

}  // namespace millrace
