#include "runner/row_worker.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "runner/logprobs.h"

namespace millrace {
namespace {

// By now a token in flight has its value.
LogitEdits::Generated generated_of(const SequenceStep& sequence) {
  LogitEdits::Generated generated{sequence.generated, {}};
  if (sequence.last_is_generated) generated.last = sequence.tokens.back();
  return generated;
}

constexpr std::size_t kWordBits = 64;  // of a mask
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr auto kNothingAllowed = [] {
  std::array<float, kWordBits> out{};
  out.fill(kNever);
  return out;
}();

// NaN or +inf among them. Where their number is a constant, compilers compare several at once.
template <std::size_t kCount>
bool any_broken(std::span<const float, kCount> logits) {
  int broken = 0;
  for (const float logit : logits) broken |= static_cast<int>(!(logit <= std::numeric_limits<float>::max()));
  return broken != 0;
}

}  // namespace

// A broken row fails, also where its broken logits are masked. Of a word of the mask most bits are alike: the logits
// are filled or copied together, and then the others one by one.
Status RowWorker::fill_masked(std::span<const float> logits, const grammar::TokenMask& mask) {
  CHECK(mask.size() * kWordBits >= logits.size());
  masked_.resize(logits.size());
  bool broken = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kWordBits) {
    const std::span<const float> from = logits.subspan(begin, std::min(kWordBits, logits.size() - begin));
    broken |= from.size() == kWordBits ? any_broken(from.first<kWordBits>()) : any_broken(from);
    float* to = masked_.data() + begin;
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

Status RowWorker::sample(std::span<float> logits, const SequenceStep& sequence, SampledToken& out,
                         const grammar::TokenMask* mask) {
  const SamplingSpec& spec = sequence.sampling;
  std::span<float> row = logits;
  if (mask != nullptr) {
    RETURN_IF_ERROR(fill_masked(logits, *mask));
    row = masked_;
  }
  const auto position = static_cast<int32_t>(sequence.position + static_cast<int64_t>(sequence.tokens.size()));
  if (LogitEdits::wanted(spec, generated_of(sequence))) {
    ASSIGN_OR_RETURN(out.token, sample_edited(row, sequence, position));
  } else {
    ASSIGN_OR_RETURN(out.token, sampler_.sample(row, spec, position));
  }
  if (spec.top_logprobs < 0) return ok_status();
  ASSIGN_OR_RETURN(out.logprobs, token_logprobs(logits, out.token, spec, select_));
  return ok_status();
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
