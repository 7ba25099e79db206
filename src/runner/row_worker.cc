#include "runner/row_worker.h"

#include "runner/logprobs.h"
#include "runner/masked_row.h"

namespace millrace {
namespace {

// By now a token in flight has its value.
LogitEdits::Generated generated_of(const SequenceStep& sequence) {
  LogitEdits::Generated generated{sequence.generated, {}};
  if (sequence.last_is_generated) generated.last = sequence.tokens.back();
  return generated;
}

}  // namespace

Status RowWorker::sample(std::span<float> logits, const SequenceStep& sequence, SampledToken& out,
                         const grammar::TokenMask* mask) {
  const SamplingSpec& spec = sequence.sampling;
  const bool edited = LogitEdits::wanted(spec, generated_of(sequence));
  if (mask != nullptr && spec.temperature < kGreedyTemperature && !edited) {
    RETURN_IF_ERROR(check_sampling(spec, static_cast<int32_t>(logits.size())));
    ASSIGN_OR_RETURN(out.token, masked_greedy_token(logits, *mask));
  } else {
    std::span<float> row = logits;
    if (mask != nullptr) {
      RETURN_IF_ERROR(fill_masked_row(logits, *mask, masked_));
      row = masked_;
    }
    ASSIGN_OR_RETURN(out.token, draw(row, sequence, edited));
  }
  if (spec.top_logprobs < 0) return ok_status();
  ASSIGN_OR_RETURN(out.logprobs, token_logprobs(logits, out.token, spec, select_));
  return ok_status();
}

Result<int32_t> RowWorker::draw(std::span<float> row, const SequenceStep& sequence, bool edited) {
  const auto position = static_cast<int32_t>(sequence.position + static_cast<int64_t>(sequence.tokens.size()));
  return edited ? sample_edited(row, sequence, position) : sampler_.sample(row, sequence.sampling, position);
}

Result<int32_t> RowWorker::sample_edited(std::span<float> logits, const SequenceStep& sequence, int32_t position) {
  const SamplingSpec& spec = sequence.sampling;
  RETURN_IF_ERROR(check_sampling(spec, static_cast<int32_t>(logits.size())));
  RETURN_IF_ERROR(edits_.apply(logits, spec, generated_of(sequence)));
  Result<int32_t> token = sampler_.sample(logits, spec, position);
  edits_.restore(logits);
  // Edits keep finite logits finite, but for bans: where the model's own row was good, they took the last token.
  if (!token.ok() && !spec.banned.empty() && greedy_token(logits).ok()) {
    return invalid_argument("all tokens that the model allows are banned ({} banned ids); wanted one that may be drawn",
                            spec.banned.size());
  }
  return token;
}

Status RowWorker::score(std::span<const float> logits, const SequenceStep& sequence, std::size_t target,
                        wire::TokenLogprobs& out) {
  RETURN_IF_ERROR(check_sampling(sequence.sampling, static_cast<int32_t>(logits.size())));
  ASSIGN_OR_RETURN(out, token_logprobs(logits, sequence.score_targets[target], sequence.sampling, select_));
  return ok_status();
}

}  // namespace millrace
