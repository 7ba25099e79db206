#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace millrace::kernels {
namespace {

// True where logit a is to be chosen before b, which stands later.
bool comes_first(float a, float b) { return !(b > a); }

// The k likeliest of `logits` into `chosen`, ascending. k is small: each candidate is inserted into the best so far.
void choose(const float* logits, int64_t experts, std::span<int32_t> chosen) {
  std::size_t count = 0;
  for (int32_t e = 0; e < experts; ++e) {
    std::size_t at = count;
    while (at > 0 && !comes_first(logits[chosen[at - 1]], logits[e])) --at;
    if (at == chosen.size()) continue;
    count = std::min(count + 1, chosen.size());
    for (std::size_t i = count - 1; i > at; --i) chosen[i] = chosen[i - 1];
    chosen[at] = e;
  }
  std::sort(chosen.begin(), chosen.end());
}

void route_row(const float* logits, int64_t experts, bool normalize, std::span<int32_t> chosen,
               std::span<float> weights) {
  choose(logits, experts, chosen);
  double highest = -std::numeric_limits<double>::infinity();
  bool broken = false;
  for (int64_t e = 0; e < experts; ++e) {
    highest = std::max(highest, double{logits[e]});
    broken = broken || std::isnan(logits[e]);
  }
  double all = 0, taken = 0;
  for (int64_t e = 0; e < experts; ++e) all += std::exp(double{logits[e]} - highest);
  for (const int32_t e : chosen) taken += std::exp(double{logits[e]} - highest);
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const double p = std::exp(double{logits[chosen[i]]} - highest) / (normalize ? taken : all);
    weights[i] = broken ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(p);
  }
}

}  // namespace

void route(ConstRows logits, int64_t k, bool normalize, std::span<int32_t> chosen, std::span<float> weights) {
  CHECK(k >= 1 && k <= logits.width);
  const auto size = static_cast<std::size_t>(k);
  CHECK(chosen.size() == static_cast<std::size_t>(logits.count) * size && weights.size() == chosen.size());
  for (int64_t r = 0; r < logits.count; ++r) {
    const std::size_t first = static_cast<std::size_t>(r) * size;
    route_row(logits.row(r), logits.width, normalize, chosen.subspan(first, size), weights.subspan(first, size));
  }
}

void gather_rows(ConstRows x, std::span<const int32_t> rows, Rows y) {
  CHECK(static_cast<int64_t>(rows.size()) == y.count && x.width == y.width);
  for (int64_t i = 0; i < y.count; ++i) {
    const int32_t from = rows[static_cast<std::size_t>(i)];
    CHECK(from >= 0 && from < x.count);
    std::memcpy(y.row(i), x.row(from), static_cast<std::size_t>(y.width) * sizeof(float));
  }
}

void scatter_add(ConstRows x, std::span<const int32_t> rows, std::span<const float> scales, Rows y) {
  CHECK(static_cast<int64_t>(rows.size()) == x.count && scales.size() == rows.size() && x.width == y.width);
  for (int64_t i = 0; i < x.count; ++i) {
    const int32_t to = rows[static_cast<std::size_t>(i)];
    CHECK(to >= 0 && to < y.count);
    const float scale = scales[static_cast<std::size_t>(i)];
    for (int64_t j = 0; j < x.width; ++j) y.row(to)[j] += scale * x.row(i)[j];
  }
}

}  // namespace millrace::kernels
