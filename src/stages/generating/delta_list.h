// Lists of token deltas: those that wait for a receiver which is behind, joined to few; those of a request that never
// came to the scheduler. Thread safety: pure functions.
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

// The deltas of a request that ends before anything is computed: as each, it starts and then finishes.
inline void append_end(const wire::TokenizedRequest& request, wire::FinishReason reason,
                       std::vector<wire::TokenDelta>& list) {
  const wire::Usage usage{.prompt_tokens = static_cast<int32_t>(request.prompt.size())};
  list.push_back({.id = request.id, .start = wire::DetokenizeStart{}, .usage = usage});
  list.push_back({.id = request.id, .finish = wire::Finish{.reason = reason}, .usage = usage});
}

}  // namespace millrace
