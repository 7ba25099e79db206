#include "runner/masked_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "runner/sampler.h"

namespace millrace {
namespace {

constexpr std::size_t kWordBits = 64;  // of a mask
constexpr int kFewBits = 8;            // of a word: looked at one by one
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr auto kNothingAllowed = [] {
  std::array<float, kWordBits> out{};
  out.fill(kNever);
  return out;
}();

// Where the number of logits is a constant, as of complete words, compilers compare several at once.
template <std::size_t kCount>
bool any_broken(std::span<const float, kCount> logits) {
  int broken = 0;
  for (const float logit : logits) broken |= static_cast<int>(!(logit <= std::numeric_limits<float>::max()));
  return broken != 0;
}

bool any_larger(std::span<const float, kWordBits> logits, float value) {
  int larger = 0;
  for (const float logit : logits) larger |= static_cast<int>(logit > value);
  return larger != 0;
}

}  // namespace

std::optional<int32_t> only_token(const grammar::TokenMask& mask) {
  std::optional<int32_t> only;
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const uint64_t word = mask[i];
    if (word == 0) continue;
    if (only || (word & (word - 1)) != 0) return std::nullopt;
    only = static_cast<int32_t>(i * kWordBits) + std::countr_zero(word);
  }
  return only;
}

// Of a word of the mask most bits are alike: the logits are filled or copied together, and then the others one by one.
Status fill_masked_row(std::span<const float> logits, const grammar::TokenMask& mask, std::vector<float>& out) {
  CHECK(mask.size() * kWordBits >= logits.size());
  out.resize(logits.size());
  bool broken = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kWordBits) {
    const std::span<const float> from = logits.subspan(begin, std::min(kWordBits, logits.size() - begin));
    broken |= from.size() == kWordBits ? any_broken(from.first<kWordBits>()) : any_broken(from);
    float* to = out.data() + begin;
    const uint64_t word = mask[begin / kWordBits];
    const bool mostly_allowed = 2 * static_cast<std::size_t>(std::popcount(word)) > kWordBits;
    std::copy_n(mostly_allowed ? from.data() : kNothingAllowed.data(), from.size(), to);
    for (uint64_t others = mostly_allowed ? ~word : word; others != 0; others &= others - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(others));
      if (i >= from.size()) break;
      to[i] = mostly_allowed ? kNever : from[i];
    }
  }
  return broken ? greedy_token(logits).status() : ok_status();
}

Result<int32_t> masked_greedy_token(std::span<const float> logits, const grammar::TokenMask& mask) {
  CHECK(mask.size() * kWordBits >= logits.size());
  std::size_t best = 0;
  float value = kNever;
  bool broken = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kWordBits) {
    const std::span<const float> from = logits.subspan(begin, std::min(kWordBits, logits.size() - begin));
    const bool complete = from.size() == kWordBits;
    broken |= complete ? any_broken(from.first<kWordBits>()) : any_broken(from);
    uint64_t word = mask[begin / kWordBits];
    if (complete && std::popcount(word) > kFewBits && !any_larger(from.first<kWordBits>(), value)) continue;
    for (; word != 0; word &= word - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(word));
      if (i >= from.size()) break;
      if (!(from[i] > value)) continue;
      best = begin + i;
      value = from[i];
    }
  }
  if (broken) return greedy_token(logits).status();
  if (value == kNever) return internal_error("all {} logits are -inf; wanted at least one finite", logits.size());
  return static_cast<int32_t>(best);
}

}  // namespace millrace
