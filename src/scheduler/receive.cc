// The scheduler's inbox: accept, reject, abort. Nothing here computes or plans.
#include <algorithm>
#include <chrono>
#include <utility>

#include "scheduler/request_check.h"
#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {
namespace {

int64_t steady_now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

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

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, Runner& runner)
    : options_(std::move(options)),
      runner_(runner),
      model_(runner.facts()),
      memory_(model_.page_count, model_.page_size,
              MemoryOptions{options_.prefix_cache, options_.cache, model_.host_page_count}),
      ratio_(options_.conservativeness),
      waiting_(options_.max_skips, options_.policy, options_.policy_seed) {
  CHECK(validate(options_).ok());
  CHECK(model_.vocab_size > 0 && model_.context_length > 0);
  if (!options_.now_us) options_.now_us = steady_now_us;
  if (model_.weight_version != 0) weight_version_ = model_.weight_version;
}

void Scheduler::receive(wire::TokenizedRequest request, Deltas& out) {
  if (const auto live = sequences_.find(request.id); live != sequences_.end()) {
    const Status twice = error(StatusCode::kConflict, "request id {} came twice; both requests end", request.id.value);
    return finish(*live->second, error_finish(twice), out);
  }
  // What can never run comes before what cannot run now, so that a client does not retry in vain.
  if (const Status status = check_request(request, model_); !status.ok()) return reject(request, status, out);
  if (draining_) {
    return reject(request, error(StatusCode::kUnavailable, "the server is draining and takes no new requests"), out);
  }
  if (!make_room_in_queue(request, out)) {
    return reject(
        request,
        error(StatusCode::kResourceExhausted, "{} requests run and {} wait; the limits are {} and {}; try again later",
              running_.size(), waiting_.size(), options_.max_running_requests, options_.max_queued_requests),
        out);
  }
  accept(std::move(request), out);
}

// With the priority policy the worst of a full queue gives way to a strictly better one. Those that came back from
// running are not touched: they have been promised to go on.
bool Scheduler::make_room_in_queue(const wire::TokenizedRequest& request, Deltas& out) {
  // The next step takes as many as may still run: of a burst that fits, none is refused.
  const int32_t may_run = std::max(0, options_.max_running_requests - static_cast<int32_t>(running_.size()));
  if (waiting_.size() - may_run < options_.max_queued_requests) return true;
  if (options_.policy != Policy::kPriority) return false;
  Sequence* worst = waiting_.worst();
  if (worst == nullptr || worst->priority >= request.priority) return false;
  const Status status = error(StatusCode::kUnavailable,
                              "the queue is full ({} requests) and one of priority {} came; this one has priority {}; "
                              "try again later",
                              waiting_.size(), request.priority, worst->priority);
  finish(*worst, error_finish(status), out);
  ++counters_.dropped;
  return true;
}

void Scheduler::reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out) {
  wire::TokenDelta& rejected = out.emplace_back();
  rejected.id = request.id;
  rejected.finish = error_finish(status);
  rejected.usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  ++counters_.rejected;
}

void Scheduler::accept(wire::TokenizedRequest request, Deltas& out) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->prompt_length = static_cast<int32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->sampling = std::move(request.sampling);
  sequence->spec = take_spec(sequence->sampling);
  if (sequence->sampling.min_tokens > 0) {
    sequence->spec.banned = stopping_tokens(sequence->sampling, options_.eos_token_ids, model_.vocab_size);
  }
  sequence->extra_key = std::move(request.extra_key);
  sequence->priority = request.priority;
  sequence->arrival = next_arrival_++;
  sequence->accepted_us = options_.now_us();
  sequence->deadline_us = deadline(sequence->accepted_us, request.timeout_ms);
  sequence->queue_deadline_us = deadline(sequence->accepted_us, request.queue_timeout_ms);
  // The row before a position scores it; so that row is computed, whatever is cached.
  const int32_t from = sequence->sampling.prompt_logprobs_from;
  if (from >= 0 && from < sequence->prompt_length) {
    sequence->tell_first_prompt_logprob = from == 0;
    sequence->score_next = std::max(from, 1);
    if (sequence->score_next < sequence->prompt_length) sequence->match_limit = sequence->score_next - 1;
  }
  const wire::SamplingParams& sampling = sequence->sampling;
  wire::TokenDelta& accepted = out.emplace_back();
  accepted.id = sequence->id;
  accepted.start = wire::DetokenizeStart{sampling.stop, sampling.skip_special_tokens,
                                         sampling.include_stop_str_in_output, sampling.stop_regex};
  accepted.usage = sequence->usage();
  ++counters_.accepted;
  deadlines_.add(*sequence);
  waiting_.push(*sequence);
  sequences_.emplace(request.id, std::move(sequence));
}

void Scheduler::abort(ReqId id, Deltas& out) {
  const auto live = sequences_.find(id);
  if (live == sequences_.end()) return;
  wire::Finish aborted;
  aborted.reason = wire::FinishReason::kAborted;
  finish(*live->second, std::move(aborted), out);
}

void Scheduler::fail_all(const Status& status, Deltas& out) {
  std::vector<Sequence*> all;
  for (const auto& [id, sequence] : sequences_) all.push_back(sequence.get());
  std::ranges::sort(all, {}, &Sequence::arrival);
  for (Sequence* sequence : all) finish(*sequence, error_finish(status), out);
}

}  // namespace millrace
