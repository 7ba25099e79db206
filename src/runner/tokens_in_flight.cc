#include "runner/tokens_in_flight.h"

#include <algorithm>

namespace millrace {

Status TokensInFlight::resolve(SequenceStep& sequence) const {
  if (sequence.tokens.empty() || sequence.tokens.back() != kTokenInFlight) return ok_status();
  ASSIGN_OR_RETURN(sequence.tokens.back(), token_of(sequence.request));
  return ok_status();
}

Result<int32_t> TokensInFlight::token_of(ReqId request) const {
  if (!any_step_) {
    return invalid_argument("request {} waits for a token in flight, but no batch came before", request.value);
  }
  if (!step_status_.ok()) {
    return step_status_.with_prefix(
        fmt::format("request {} waits for its token of step {}, which failed", request.value, step_));
  }
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), request,
                                   [](const Entry& entry, ReqId id) { return entry.request < id; });
  if (at == entries_.end() || at->request != request) {
    return invalid_argument("request {} waits for its token of step {}, which sampled none for it", request.value,
                            step_);
  }
  if (!at->status.ok()) {
    return at->status.with_prefix(
        fmt::format("request {} waits for its token of step {}, where its row failed", request.value, step_));
  }
  return at->token;
}

void TokensInFlight::remember(const Batch& batch, const BatchResult& result) {
  any_step_ = true;
  step_ = batch.step;
  step_status_ = result.status;
  entries_.clear();
  std::size_t answer = 0;  // results stand in the batch's order, one for each sequence that answers
  for (const SequenceStep& sequence : batch.sequences) {
    if (!result.status.ok()) break;
    if (!sequence.answers()) continue;
    const SampledToken& found = result.tokens[answer++];
    if (sequence.sample) entries_.push_back({found.request, found.token, found.status});
  }
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.request < b.request; });
}

}  // namespace millrace
