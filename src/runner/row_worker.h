// RowWorker: what one row of logits answers, in the order that sampler.h tells: the token drawn from it, the logprobs
// of that token, the logprobs of the prompt token that follows it.
//
// Owner: the model runner, one for each worker of its pool. Thread safety: none; workers share nothing. Every function
// leaves the row of logits as it found it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "grammar/token_trie.h"
#include "runner/logit_edits.h"
#include "runner/runner.h"
#include "runner/sampler.h"
#include "runner/top_select.h"

namespace millrace {

class RowWorker {
 public:
  explicit RowWorker(int32_t vocab_size) : sampler_(vocab_size), edits_(vocab_size), select_(vocab_size) {}

  // Draws the token that follows the last row of `sequence` into out.token, with out.logprobs where they are asked for.
  // `mask`: the only tokens that may be drawn; null: all. It changes no logprob.
  // Errors: those of check_sampling and Sampler::sample; kInvalidArgument where bans and mask leave no token to draw.
  Status sample(std::span<float> logits, const SequenceStep& sequence, SampledToken& out,
                const grammar::TokenMask* mask = nullptr);

  // The logprobs of score_targets[target]. Errors: those of check_sampling and token_logprobs.
  Status score(std::span<const float> logits, const SequenceStep& sequence, std::size_t target,
               wire::TokenLogprobs& out);

 private:
  Result<int32_t> draw(std::span<float> row, const SequenceStep& sequence, bool edited);
  Result<int32_t> sample_edited(std::span<float> logits, const SequenceStep& sequence, int32_t position);

  Sampler sampler_;
  LogitEdits edits_;
  TopSelect select_;
  std::vector<float> masked_;  // a row with -inf for what its mask forbids
};

}  // namespace millrace
