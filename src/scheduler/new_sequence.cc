#include "scheduler/new_sequence.h"

#include <algorithm>
#include <utility>

#include "scheduler/stop.h"

namespace millrace {
namespace {

// `limit_ms` after `from_us`; 0: never. A limit beyond the end of time is none.
int64_t deadline(int64_t from_us, int64_t limit_ms) {
  const int64_t most_ms = (kNoDeadline - from_us) / 1000 - 1;
  return limit_ms <= 0 || limit_ms > most_ms ? kNoDeadline : from_us + limit_ms * 1000;
}

// The runner's view of `params`, with the lists moved out of it. `banned` is empty.
SamplingSpec take_spec(wire::SamplingParams& params) {
  SamplingSpec spec;
  spec.temperature = params.temperature;
  spec.top_p = params.top_p;
  spec.min_p = params.min_p;
  spec.top_k = params.top_k;
  spec.seed = params.seed;
  spec.frequency_penalty = params.frequency_penalty;
  spec.presence_penalty = params.presence_penalty;
  spec.repetition_penalty = params.repetition_penalty;
  spec.logit_bias = std::exchange(params.logit_bias, {});
  spec.top_logprobs = params.top_logprobs;
  spec.logprob_token_ids = std::exchange(params.logprob_token_ids, {});
  return spec;
}

// The row before a position scores it; so that row is computed, whatever is cached.
void begin_scores(Sequence& sequence) {
  const int32_t from = sequence.sampling.prompt_logprobs_from;
  if (from < 0 || from >= sequence.prompt_length) return;
  sequence.report_first_prompt_logprob = from == 0;
  sequence.score_next = std::max(from, 1);
}

}  // namespace

Status key_media(const PromptInput& input, MediaIds& ids, std::vector<int32_t>& prompt) {
  for (const MediaSpan& span : input.spans) {
    CHECK(span.begin >= 0 && span.features.rows >= 0 && std::cmp_less_equal(span.end(), prompt.size()));
    const int32_t id = ids.id(span.digest);
    if (id == kNoMediaId) {
      return error(StatusCode::kUnavailable,
                   "all numbers for pictures and audio are given away; wanted a restart of this stage");
    }
    std::fill_n(prompt.begin() + span.begin, span.features.rows, id);
  }
  return ok_status();
}

std::unique_ptr<Sequence> make_sequence(wire::TokenizedRequest request, PreparedParts prepared, uint64_t arrival,
                                        int64_t now_us, const SchedulerOptions& options, int32_t vocab_size) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->prompt_length = static_cast<int32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->sampling = std::move(request.sampling);
  sequence->spec = take_spec(sequence->sampling);
  sequence->spec.grammar = std::move(prepared.grammar);
  sequence->input = std::move(prepared.input);
  sequence->row_state = std::move(prepared.row_state);
  sequence->capture = std::move(prepared.capture);
  if (sequence->capture) sequence->capture_next = sequence->capture->next(0);
  sequence->sampling.grammar.reset();
  if (sequence->sampling.min_tokens > 0) {
    std::vector<int32_t> banned = stopping_tokens(sequence->sampling, options.eos_token_ids, vocab_size);
    banned.insert(banned.end(), options.suppressed_token_ids.begin(), options.suppressed_token_ids.end());
    sequence->spec.banned = std::move(banned);
  }
  sequence->extra_key = std::move(request.extra_key);
  sequence->priority = request.priority;
  sequence->arrival = arrival;
  sequence->accepted_us = now_us;
  sequence->deadline_us = deadline(now_us, request.timeout_ms);
  sequence->queue_deadline_us = deadline(now_us, request.queue_timeout_ms);
  begin_scores(*sequence);
  limit_match(*sequence);
  if (sequence->row_state) {
    sequence->row_limit = 0;
    sequence->publishable = false;  // its tokens do not determine its rows
    sequence->match_limit = 0;
  }
  return sequence;
}

}  // namespace millrace
