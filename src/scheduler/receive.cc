// The scheduler's inbox: accept, reject, abort. Nothing here computes or plans.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace millrace {

Scheduler::Scheduler(SchedulerOptions options, Runner& runner)
    : options_(std::move(options)),
      runner_(runner),
      model_(runner.facts()),
      memory_(model_.page_count, model_.page_size, options_.prefix_cache),
      ratio_(options_.conservativeness),
      waiting_(options_.max_skips) {
  CHECK(validate(options_).ok());
  CHECK(model_.vocab_size > 0 && model_.context_length > 0);
}

Status Scheduler::validate(const SchedulerOptions& options) {
  const std::pair<const char*, int32_t> positive[] = {{"max_running_requests", options.max_running_requests},
                                                      {"max_queued_requests", options.max_queued_requests},
                                                      {"chunked_prefill_tokens", options.chunked_prefill_tokens}};
  for (const auto& [name, value] : positive) {
    if (value < 1) return invalid_argument("{} is {}; wanted an integer >= 1", name, value);
  }
  if (!(options.conservativeness >= 0 && options.conservativeness <= kMaxConservativeness)) {
    return invalid_argument("conservativeness is {}; wanted a number from 0 to {}", options.conservativeness,
                            kMaxConservativeness);
  }
  if (options.max_skips < 0) return invalid_argument("max_skips is {}; wanted an integer >= 0", options.max_skips);
  return ok_status();
}

void Scheduler::receive(wire::TokenizedRequest request, Deltas& out) {
  if (const auto live = sequences_.find(request.id); live != sequences_.end()) {
    const Status twice = error(StatusCode::kConflict, "request id {} came twice; both requests end", request.id.value);
    return end_or_doom(*live->second, error_finish(twice), out);
  }
  if (const Status status = check_request(request); !status.ok()) return reject(request, status, out);

  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id;
  sequence->prompt_length = static_cast<int32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->sampling = std::move(request.sampling);
  sequence->extra_key = std::move(request.extra_key);
  sequence->arrival = next_arrival_++;

  wire::TokenDelta& accepted = out.emplace_back();
  accepted.id = sequence->id;
  accepted.start = wire::DetokenizeStart{sequence->sampling.stop, sequence->sampling.skip_special_tokens,
                                         sequence->sampling.include_stop_str_in_output};
  accepted.usage = sequence->usage();
  ++counters_.accepted;
  waiting_.push(*sequence);
  sequences_.emplace(request.id, std::move(sequence));
}

// What can never run comes before what cannot run now, so that a client does not retry in vain.
Status Scheduler::check_request(const wire::TokenizedRequest& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid_argument("the prompt has 0 tokens; wanted at least 1");
  if (length >= model_.context_length) {
    return invalid_argument("the prompt has {} tokens; wanted at most {}, because the context holds {} tokens", length,
                            model_.context_length - 1, model_.context_length);
  }
  if (memory_.pages_for(length) > model_.page_count) {
    return invalid_argument("the prompt needs {} KV pages of {} tokens; the pool has {}", memory_.pages_for(length),
                            model_.page_size, model_.page_count);
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < model_.vocab_size) continue;
    return invalid_argument("prompt token {} is {}; wanted 0..{}", i, request.prompt[i], model_.vocab_size - 1);
  }
  if (request.sampling.max_tokens < 1) {
    return invalid_argument("max_tokens is {}; wanted an integer >= 1", request.sampling.max_tokens);
  }
  if (draining_) return error(StatusCode::kUnavailable, "the server is draining and takes no new requests");
  if (waiting_.size() >= options_.max_queued_requests) {
    return error(StatusCode::kResourceExhausted, "{} requests are waiting; the limit is {}; try again later",
                 waiting_.size(), options_.max_queued_requests);
  }
  return ok_status();
}

void Scheduler::reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out) {
  wire::TokenDelta& rejected = out.emplace_back();
  rejected.id = request.id;
  rejected.finish = error_finish(status);
  rejected.usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  ++counters_.rejected;
}

void Scheduler::abort(ReqId id, Deltas& out) {
  const auto live = sequences_.find(id);
  if (live == sequences_.end()) return;
  wire::Finish aborted;
  aborted.reason = wire::FinishReason::kAborted;
  end_or_doom(*live->second, aborted, out);
}

void Scheduler::fail_all(const Status& status, Deltas& out) {
  std::vector<Sequence*> all;
  for (const auto& [id, sequence] : sequences_) all.push_back(sequence.get());
  std::ranges::sort(all, {}, &Sequence::arrival);
  for (Sequence* sequence : all) end_or_doom(*sequence, error_finish(status), out);
}

// The pages of a request that is in flight are the runner's to write until the batch was polled, so its end waits for
// that. The first end decided is the one that counts.
void Scheduler::end_or_doom(Sequence& sequence, wire::Finish end, Deltas& out) {
  if (sequence.rows_in_flight == 0) return finish(sequence, std::move(end), Publish::kYes, out);
  if (!sequence.doom) sequence.doom = std::move(end);
}

SchedulerFacts Scheduler::facts() const {
  SchedulerFacts facts = counters_;
  const PageBooks books = memory_.books();
  facts.running = static_cast<int32_t>(running_.size());
  facts.waiting = waiting_.size();
  facts.pages_total = books.all;
  facts.pages_free = books.free();
  facts.pages_cached = books.cached();
  facts.pages_held = books.held();
  facts.page_size = memory_.page_size();
  return facts;
}

}  // namespace millrace
