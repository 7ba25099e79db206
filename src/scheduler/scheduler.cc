#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/new_sequence.h"
#include "scheduler/request_check.h"
#include "scheduler/stop.h"

namespace millrace {
namespace {

SchedulerOptions with_clock(SchedulerOptions options) {
  if (!options.now_us) options.now_us = monotonic_us;
  return options;
}

}  // namespace

Scheduler::Scheduler(SchedulerOptions options, Runner& runner)
    : options_(with_clock(std::move(options))),
      runner_(runner),
      model_(runner.facts()),
      memory_(model_.page_count, model_.page_size,
              MemoryOptions{options_.prefix_cache, options_.cache, model_.host_page_count}),
      requests_(options_, memory_, counters_),
      in_flight_(runner, memory_, options_.now_us),
      transfers_(runner_, model_, memory_, in_flight_, counters_),
      planner_(options_, model_, memory_, requests_, cost_, counters_),
      settlement_(options_, model_, memory_, requests_, in_flight_, cost_, counters_),
      kv_epoch_(runner.kv_epoch()) {
  CHECK(validate(options_).ok());
  CHECK(model_.vocab_size > 0 && model_.context_length > 0);
  CHECK(model_.depth >= 1 && model_.depth <= kMaxDepth);
  // A request's last token takes no slot of the pool. With a context of one token more than its slots, each request
  // ends before it lacks pages while it runs alone.
  const int64_t slots = int64_t{model_.page_count} * model_.page_size;
  model_.context_length = static_cast<int32_t>(std::min(slots + 1, int64_t{model_.context_length}));
  if (model_.weight_version != 0) memory_.set_weight_version(model_.weight_version);
}

void Scheduler::receive(wire::TokenizedRequest request, Deltas& out, PreparedParts prepared, BeforeAcceptance before) {
  if (Sequence* live = requests_.find(request.id)) {
    const Status twice = error(StatusCode::kConflict, "request id {} came twice; both requests end", request.id.value);
    return requests_.end(*live, error_finish(twice), out);
  }
  // What can never run comes before what cannot run now, so that a client does not retry in vain.
  if (const Status status = check_request(request, prepared, model_); !status.ok()) return reject(request, status, out);
  if (!requests_.make_space(request.priority, out)) {
    return reject(
        request,
        error(StatusCode::kResourceExhausted, "{} requests run and {} wait; the limits are {} and {}; try again later",
              requests_.running_count(), requests_.waiting().size(), options_.max_running_requests,
              options_.max_queued_requests),
        out);
  }
  accept(std::move(request), std::move(prepared), std::move(before), out);
}

void Scheduler::reject(const wire::TokenizedRequest& request, const Status& status, Deltas& out) {
  wire::TokenDelta& rejected = out.emplace_back();
  rejected.id = request.id;
  rejected.finish = error_finish(status);
  rejected.usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  ++counters_.rejected;
}

void Scheduler::accept(wire::TokenizedRequest request, PreparedParts prepared, BeforeAcceptance before, Deltas& out) {
  if (prepared.input) {
    if (Status status = key_media(*prepared.input, media_ids_, request.prompt); !status.ok()) {
      return reject(request, status, out);
    }
  }
  auto sequence = make_sequence(std::move(request), std::move(prepared), next_arrival_++,
                                options_.now_us() - before.waited_us, options_, model_.vocab_size);
  sequence->transferred = before.transferred_tokens;
  sequence->transfer = std::move(before.transfer);
  wire::TokenDelta& accepted = out.emplace_back();
  accepted.id = sequence->id;
  // Whether it continues text the worker knows, which has the tokenizer.
  accepted.start = wire::detokenize_start(sequence->sampling, false);
  accepted.usage = sequence->usage();
  accepted.usage.transfer = sequence->transfer;
  ++counters_.accepted;
  requests_.add(std::move(sequence));
}

void Scheduler::abort(ReqId id, Deltas& out) {
  if (Sequence* live = requests_.find(id)) requests_.end(*live, aborted_finish(), out);
}

void Scheduler::stop(ReqId id, Deltas& out) {
  if (Sequence* live = requests_.find(id)) requests_.end(*live, {.reason = wire::FinishReason::kStop}, out);
}

void Scheduler::release_rows(ReqId id, int32_t rows) {
  Sequence* sequence = requests_.find(id);
  if (sequence != nullptr && sequence->row_state) sequence->row_limit = std::max(sequence->row_limit, rows);
}

bool Scheduler::step(int poll_timeout_ms, Deltas& out) {
  if (requests_.has_deadlines()) requests_.end_expired(options_.now_us(), out);
  check_kv_epoch();
  forget_lost_kv();
  if (in_flight_.empty() && std::exchange(retract_when_drained_, false)) requests_.retract_all();
  if (switch_) apply_switch();
  int wait_ms = poll_timeout_ms;
  plan_batches(wait_ms, out);
  const bool starved = in_flight_.empty() && requests_.starved();
  if (in_flight_.empty() && !requests_.empty() && !starved && may_plan()) transfers_.give_way();
  if (!in_flight_.empty()) {
    std::optional<BatchResult> result = runner_.poll(wait_ms);
    check_kv_epoch();  // before anything of this result is published
    const bool switched = result && switch_ && result->weight_version == switch_->version;
    if (result) transfers_.settle(*result, kv_lost_);
    if (result) settle(std::move(*result), out);
    if (switched) end_switch();
    forget_lost_kv();
  }
  if (!busy()) check_books_when_idle();
  const bool waits = paused_ || starved || runner_.recovering();
  return busy() && !(waits && in_flight_.empty() && !retract_when_drained_ && !switch_);
}

void Scheduler::settle(BatchResult result, Deltas& out) {
  LoggedStep step{.sequences = static_cast<int32_t>(in_flight_.oldest().rows.size()), .compute_us = result.compute_us};
  const uint64_t prefill_rows = counters_.prefill_rows, decode_rows = counters_.decode_rows;
  settlement_.settle(std::move(result), kv_lost_, out);
  step.step = counters_.steps;
  step.prefill_rows = static_cast<int32_t>(counters_.prefill_rows - prefill_rows);
  step.decode_rows = static_cast<int32_t>(counters_.decode_rows - decode_rows);
  log_.add(step);
}

// Submits batches while fewer are in flight than may be. `wait_ms`: how long the oldest may be waited for.
void Scheduler::plan_batches(int& wait_ms, Deltas& out) {
  const auto depth = static_cast<std::size_t>(options_.overlap ? model_.depth : 1);
  while (in_flight_.size() < depth && (!requests_.empty() || transfers_.queued()) && may_plan()) {
    // The ranges of a chain are at work only while enough batches are in flight: there it is always time.
    const int early_ms = model_.token_in_flight ? in_flight_.plan_in_ms(cost_) : 0;
    if (early_ms > 0) {
      wait_ms = std::min(wait_ms, early_ms);
      break;
    }
    BatchPlan next = planner_.plan(in_flight_.work());
    transfers_.add_to(next.batch);
    if ((next.empty() && !transfers_.waits_for_loads()) || !submit(std::move(next), out)) break;
    check_kv_epoch();
  }
}

bool Scheduler::may_plan() const {
  if (paused_ || kv_lost_ || runner_.recovering()) return false;
  return !switch_ || (switch_->policy != InFlightPolicy::kRetract && model_.token_in_flight);
}

// False: the runner refused it, and those that it names ended.
bool Scheduler::submit(BatchPlan plan, Deltas& out) {
  checked_idle_ = false;
  const Status status = in_flight_.submit(plan);
  if (status.ok()) {
    transfers_.submitted(in_flight_.newest().step, in_flight_.newest().loads);
    return true;
  }
  transfers_.refused(status);
  for (const PlannedRows& rows : plan.rows) requests_.end(*rows.sequence, error_finish(status), out);
  return false;
}

Status Scheduler::switch_weights(const WeightSwitch& wanted, Deltas& out) {
  if (switch_) return error(StatusCode::kConflict, "the switch to weight version {} is under way", switch_->version);
  if (runner_.staged_version() != wanted.version || wanted.version == 0) {
    return error(StatusCode::kConflict, "weight version {} is staged; wanted {}", runner_.staged_version(),
                 wanted.version);
  }
  if (wanted.policy == InFlightPolicy::kAbort) requests_.abort_all(out);
  switch_ = wanted;
  // The number comes again, perhaps for other weights, and requests hold KV from the first time: later ones would find
  // it.
  if (memory_.locks_version(wanted.version)) switch_->policy = InFlightPolicy::kRetract;
  return ok_status();
}

// Where a batch is in flight, the next one is the switch; where none is, the switch is now, so that the old weights are
// freed also when no request comes. While one is in flight, a retraction has to wait for it, and so has a pause: no
// batch would follow. A chain waits too, because its ranges compute several batches at the same time: no batch of new
// weights is there while older ones are.
void Scheduler::apply_switch() {
  if (!in_flight_.empty()) {
    if (may_plan() && memory_.weight_version() != switch_->version) begin_version(switch_->version);
    return;
  }
  if (switch_->policy == InFlightPolicy::kRetract) requests_.retract_all();
  // The weights first: begin_version() drops KV, which serves on where they are not switched.
  const Status status = serve_staged();
  if (status.ok()) {
    begin_version(switch_->version);
    return end_switch();
  }
  LOG_ERROR("scheduler: the staged weights are not served: {}", status.to_string());
  // Batches that name weights which do not serve would fail, each one from now on.
  if (memory_.weight_version() == switch_->version) begin_version(runner_.facts().weight_version);
  switch_.reset();
}

// Of the batches that are planned from now on. What waits is computed with it alone, also what an older version had
// computed some of.
void Scheduler::begin_version(uint64_t version) {
  memory_.set_weight_version(version);
  requests_.restart_captures();
}

// Other weights may have taken the place of those of the switch, or none are staged any more.
Status Scheduler::serve_staged() {
  const uint64_t staged = runner_.staged_version();
  if (staged == switch_->version) return runner_.serve_staged();
  return error(StatusCode::kConflict, "weight version {} is staged; wanted {}", staged, switch_->version);
}

void Scheduler::end_switch() {
  CHECK(switch_.has_value());
  if (switch_->flush_cache) memory_.flush(switch_->version);
  switch_.reset();
}

// The bytes of all KV pages may have been lost. What is in flight ends with its results; nothing that was computed
// before is published any more, and nothing is planned until it may be forgotten.
void Scheduler::check_kv_epoch() {
  const uint64_t epoch = runner_.kv_epoch();
  if (epoch == kv_epoch_) return;
  LOG_WARNING("scheduler: the KV of {} running requests is lost (epoch {} after {}); it is computed again",
              requests_.running_count(), epoch, kv_epoch_);
  kv_epoch_ = epoch;
  kv_lost_ = true;
  ++counters_.kv_losses;
  for (Sequence* sequence : requests_.running()) {
    sequence->publishable = false;
    sequence->kv_losses += sequence->batches > 0;
  }
}

// Once nothing is in flight, running requests wait again to compute all their tokens, and the cache is empty.
void Scheduler::forget_lost_kv() {
  if (!kv_lost_ || !in_flight_.empty()) return;
  kv_lost_ = false;
  requests_.retract_all();
  transfers_.forget();
  memory_.flush();
}

void Scheduler::pause(InFlightPolicy policy, Deltas& out) {
  paused_ = true;
  if (policy == InFlightPolicy::kAbort) requests_.abort_all(out);
  if (policy == InFlightPolicy::kRetract) retract_when_drained_ = true;
}

Status Scheduler::flush_cache() {
  if (busy() && !(paused_ && in_flight_.empty())) {
    return error(StatusCode::kConflict, "the cache is only flushed while idle; {} requests run and {} wait",
                 requests_.running_count(), requests_.waiting().size());
  }
  memory_.flush();
  return ok_status();
}

// When no sequence holds a page, the books must agree. If they do not, that is a bug, but no reason to stop serving:
// count it, log it, and start again from empty books.
void Scheduler::check_books_when_idle() {
  if (checked_idle_) return;
  checked_idle_ = true;
  planner_.reset_estimate();
  Status status = memory_.verify(true);
  if (status.ok() && requests_.leaving_count() > 0) {
    status = internal_error("idle, but {} ended requests keep pages; wanted none", requests_.leaving_count());
  }
  if (status.ok()) return;
  ++counters_.book_rebuilds;
  LOG_ERROR("scheduler: the page books are wrong and are rebuilt: {}", status.to_string());
  requests_.forget_leaving();
  transfers_.forget();
  memory_.rebuild();
}

SchedulerFacts Scheduler::facts() const {
  SchedulerFacts facts = counters_;
  memory_.describe(facts);
  facts.running = requests_.running_count();
  facts.waiting = requests_.waiting().size();
  facts.in_flight = static_cast<int32_t>(in_flight_.size());
  facts.paused = paused_;
  facts.new_token_ratio = planner_.new_token_ratio();
  facts.step_fixed_us = cost_.fixed_us();
  facts.step_row_us = cost_.per_row_us();
  return facts;
}

SchedulerSnapshot Scheduler::snapshot() const {
  return take_snapshot(facts(), requests_, memory_, log_, options_.now_us());
}

}  // namespace millrace
