// What becomes of one answer of a batch: it is checked, and its tokens and logprobs become the sequence's.
#include <utility>

#include "scheduler/forced_run.h"
#include "scheduler/settle.h"
#include "scheduler/stop.h"

namespace millrace {

// OK: the answer can be passed on. kInvalidArgument is the fault of the request, all else of the runner.
Status Settlement::check_answer(const PlannedRows& rows, const SampledToken* answer) const {
  if (!rows.sample && rows.scores == 0) return ok_status();
  if (answer == nullptr) return internal_error("the runner returned no token for this request");
  if (!answer->status.ok()) {
    if (answer->status.code() == StatusCode::kInvalidArgument) return answer->status;  // the request's own fault
    return Status(StatusCode::kInternal, answer->status.message());
  }
  if (rows.sample && (answer->token < 0 || answer->token >= model_.vocab_size)) {
    return internal_error("the model sampled token {}; wanted 0..{}", answer->token, model_.vocab_size - 1);
  }
  const std::vector<int32_t>& forced = rows.sequence->forced;
  const auto drawn_at = static_cast<std::size_t>(rows.forced);
  if (rows.sample && forced.size() > drawn_at && forced[drawn_at] != answer->token) {
    return internal_error("the model sampled token {}; the grammar allows {} alone", answer->token, forced[drawn_at]);
  }
  if (static_cast<int64_t>(answer->prompt_logprobs.size()) != rows.scores) {
    return internal_error("the runner returned {} prompt logprobs; wanted {}", answer->prompt_logprobs.size(),
                          rows.scores);
  }
  if (rows.sample && rows.sequence->sampling.top_logprobs >= 0 && !answer->logprobs) {
    return internal_error("the runner returned no logprobs for this request");
  }
  return ok_status();
}

void Settlement::take_scores(Sequence& sequence, const PlannedRows& rows, SampledToken* answer,
                             wire::TokenDelta& delta) {
  if (std::exchange(sequence.report_first_prompt_logprob, false)) {
    delta.prompt_logprobs.emplace_back().token = sequence.tokens.front();
  }
  if (rows.scores == 0) return;
  std::ranges::move(answer->prompt_logprobs, std::back_inserter(delta.prompt_logprobs));
  sequence.score_next = rows.score_begin + rows.scores;
  limit_match(sequence);
}

// None of them ends the request (forced_rows()).
void Settlement::take_forced(Sequence& sequence, int32_t count, uint64_t version, Deltas& out) {
  for (int32_t i = 0; i < count; ++i) {
    SampledToken token{.token = sequence.tokens[static_cast<std::size_t>(sequence.known())]};
    wire::TokenDelta delta;
    CHECK(!take_token(sequence, token, version, delta));
    delta.id = sequence.id;
    delta.usage = sequence.usage();
    delta.weight_version = version;
    out.push_back(std::move(delta));
  }
  counters_.forced_run_tokens += static_cast<uint64_t>(count);
}

std::optional<wire::Finish> Settlement::take_token(Sequence& sequence, SampledToken& answer, uint64_t version,
                                                   wire::TokenDelta& delta) {
  CHECK(sequence.pending > 0);
  CHECK(sequence.sampling.top_logprobs < 0 || answer.logprobs);  // of a forced run none are wanted
  sequence.tokens[static_cast<std::size_t>(sequence.known())] = answer.token;
  const bool is_new = std::cmp_equal(sequence.known_generated.size(), sequence.generated());
  if (sequence.spec.wants_generated() && is_new) sequence.known_generated.push_back(answer.token);
  pass_forced(sequence, answer.forced);
  --sequence.pending;
  sequence.last_token_version = version;
  ++counters_.generated_tokens;
  std::optional<wire::Finish> end = stop_after(sequence, options_.eos_token_ids, model_.context_length);
  if (!end || !end->matched_token) delta.tokens.push_back(answer.token);
  if (sequence.sampling.top_logprobs >= 0) delta.logprobs.push_back(std::move(*answer.logprobs));
  return end;
}

}  // namespace millrace
