// Token deltas that wait for a receiver which is behind, joined to few. Thread safety: pure function.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "wire/generation.h"

namespace millrace {

// One delta holds tokens of one weight version.
inline void join_delta(std::vector<wire::TokenDelta>& list, wire::TokenDelta delta) {
  const bool same = !list.empty() && (list.back().weight_version == 0 || delta.weight_version == 0 ||
                                      list.back().weight_version == delta.weight_version);
  if (!same) return list.push_back(std::move(delta));
  wire::TokenDelta& last = list.back();
  last.tokens.insert(last.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(last.logprobs));
  std::move(delta.prompt_logprobs.begin(), delta.prompt_logprobs.end(), std::back_inserter(last.prompt_logprobs));
  last.finish = std::move(delta.finish);
  last.embedding = std::move(delta.embedding);
  last.usage = delta.usage;
  last.weight_version = std::max(last.weight_version, delta.weight_version);
}

}  // namespace millrace
