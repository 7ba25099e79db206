// For tests: equality of logprobs, bit for bit. Included by *_test.cc only.
#pragma once

#include <algorithm>
#include <vector>

#include "wire/generation.h"

namespace millrace {

inline bool same(const wire::TokenLogprobs& a, const wire::TokenLogprobs& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top_ids == b.top_ids && a.top == b.top &&
         a.of_ids == b.of_ids;
}

inline bool same(const std::vector<wire::TokenLogprobs>& a, const std::vector<wire::TokenLogprobs>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return same(x, y); });
}

}  // namespace millrace
