#include "runner/chain_runner.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/trace.h"
#include "runner/layer_step.h"

namespace millrace {

using std::chrono::milliseconds, std::chrono::steady_clock;

Result<std::unique_ptr<ChainRunner>> ChainRunner::make(std::shared_ptr<const Model> model, RunnerOptions options,
                                                       const ChainPlan& plan, ChainLinks links) {
  if (model->layers().begin != 0) {
    return invalid_argument("the model begins at layer {}; wanted 0, the first range", model->layers().begin);
  }
  if (plan.ranges < 2 || plan.ranges > wire::kMaxRanges) {
    return invalid_argument("a chain of {} ranges; wanted 2 to {}", plan.ranges, wire::kMaxRanges);
  }
  ASSIGN_OR_RETURN(RunnerFacts facts, runner_facts(model->config(), options));
  // One batch for each range to compute, and one on its way: with fewer, a range would wait for the head.
  facts.depth = static_cast<int32_t>(plan.ranges) + 1;
  // The token of a batch is drawn here when its rows are back, so no later batch can be embedded with it before.
  facts.token_in_flight = false;
  facts.weight_version = model->weight_version();
  facts.takes_media = model->config().vision.has_value();
  facts.hidden_size = model->config().hidden_size;
  if (facts.takes_media) facts.feature_sets = model->config().vision->feature_sets();
  facts.takes_sound = model->config().audio.has_value();
  ASSIGN_OR_RETURN(std::unique_ptr<LayerEngine> engine, LayerEngine::make(*model, options));
  return std::unique_ptr<ChainRunner>(
      new ChainRunner(std::move(model), std::move(options), facts, std::move(engine), plan, std::move(links)));
}

ChainRunner::ChainRunner(std::shared_ptr<const Model> model, RunnerOptions options, RunnerFacts facts,
                         std::unique_ptr<LayerEngine> engine, const ChainPlan& plan, ChainLinks links)
    : model_(std::move(model)),
      facts_(facts),
      engine_(std::move(engine)),
      ranges_(plan.ranges),
      chain_facts_(chain_facts(model_->config(), options, engine_->isa(), plan.model_hash, model_->weight_version())),
      links_(std::move(links)),
      waker_(links_.inbox->waker()),
      metrics_(ranges_),
      traces_(ranges_),
      broken_("not all ranges are there yet"),
      answers_(model_->config(), engine_->pool(), engine_->ops(), std::move(options.logits_hook)),
      batches_(facts_, std::min(options.max_rows, kPartRows), answers_),
      // A range that outlives this process must not take the next one's first epoch for its own.
      first_epoch_(std::random_device()()),
      epoch_(first_epoch_),
      liveness_(ranges_) {
  if (links_.peers) {
    links_.peers->on_lost([this](uint32_t range, const std::string& how, bool final) {
      const std::lock_guard lock(mutex_);
      losses_.push_back({range, fmt::format("range {} ({})", range, how), final});
      waker_->wake();
    });
  }
  // Last: the thread uses every member.
  thread_ = std::thread([this] { compute_main(); });
}

// The thread ends first, which asks the peers whether they live; then the ranges, before the members that the report of
// a loss uses.
ChainRunner::~ChainRunner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  waker_->wake();
  thread_.join();
  links_.peers.reset();
}

Status ChainRunner::wait_complete(const std::function<bool()>& waiting) {
  std::unique_lock lock(mutex_);
  while (!complete_) {
    if (!refusal_.ok()) return refusal_;
    // `waiting` looks at the processes of the ranges, and may take long or call back.
    lock.unlock();
    if (!waiting()) return error(StatusCode::kCancelled, "the chain is not complete, and the wait for it has ended");
    lock.lock();
    state_changed_.wait_for(lock, milliseconds(kHelloRetryMs), [this] { return complete_ || !refusal_.ok(); });
  }
  return ok_status();
}

RunnerFacts ChainRunner::facts() const {
  RunnerFacts facts = facts_;
  const std::lock_guard lock(mutex_);
  facts.weights_checksum = weights_checksum_;
  return facts;
}

Status ChainRunner::submit(Batch batch) {
  {
    const std::lock_guard lock(mutex_);
    if (in_flight_ >= facts_.depth) {
      return error(StatusCode::kResourceExhausted, "{} batches are in flight; wanted fewer than {}", in_flight_,
                   facts_.depth);
    }
    ++in_flight_;
    // With the epoch that the scheduler knew when it planned; see take_queued().
    queued_.push_back({std::move(batch), seen_kv_epoch_});
  }
  waker_->wake();
  return ok_status();
}

std::optional<BatchResult> ChainRunner::poll(int timeout_ms) {
  std::unique_lock lock(mutex_);
  if (in_flight_ == 0) return std::nullopt;
  const auto finished = [this] { return !finished_.empty(); };
  if (!finished_changed_.wait_for(lock, milliseconds(std::max(timeout_ms, 0)), finished)) return std::nullopt;
  BatchResult result = std::move(finished_.front());
  finished_.pop_front();
  // Only here: a batch counts until its sender has the result, so `depth` bounds finished_ as well.
  CHECK(in_flight_ > 0);
  --in_flight_;
  return result;
}

uint64_t ChainRunner::kv_epoch() const {
  const std::lock_guard lock(mutex_);
  return seen_kv_epoch_ = kv_epoch_;
}

std::string ChainRunner::missing() const {
  const std::lock_guard lock(mutex_);
  return complete_ ? "" : "a part of the model's layers is missing: " + broken_;
}

void ChainRunner::compute_main() {
  trace::name_thread("compute");
  begin_epoch();
  for (bool moved = true;; moved = step()) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    // Results before the next part: answering frees a slot of the chain and may fill the batches that wait.
    receive(moved);
  }
}

// All messages that are there; where nothing moved, waits for one. A waiting thread looks again now and then;
// at rest it is woken, and after kKvIdleMs of rest it has the kernel back KV memory, a chunk at a time.
void ChainRunner::receive(bool moved) {
  // While something is outstanding, time matters too: silence of a range, a part that is overdue, a hello to repeat.
  const bool waits = !ready_ || batches_.parts_in_flight() > 0;
  const int rest_ms = !rested_ ? kKvIdleMs : liveness_.any() ? kAliveCheckMs : -1;
  const int timeout_ms = moved ? 0 : waits ? kHelloRetryMs : rest_ms;
  if (waits) ++waits_;
  auto message = links_.inbox->receive(timeout_ms);
  if (moved || waits || message) {
    rested_ = false;
  } else {
    {
      const std::lock_guard lock(mutex_);
      // What comes after this look wakes the inbox, so a rest without a timeout cannot miss it.
      rested_ = queued_.empty() && !stopping_ && losses_.empty();
    }
    // Without the lock, which submit(), kv_epoch() and missing() wait for: it takes up to some milliseconds.
    rested_ = rested_ && !engine_->prefault_idle();
  }
  while (message) {
    std::visit([this](auto&& body) { on(std::forward<decltype(body)>(body)); }, std::move(*message));
    message = links_.inbox->receive(0);
  }
}

// What there is to do besides messages; false: nothing.
bool ChainRunner::step() {
  take_losses();
  check_liveness();
  check_part_timeout();
  if (!ready_ && !refused_ && steady_clock::now() - hello_sent_ >= milliseconds(kHelloRetryMs)) send_hello();
  if (recovering_ && steady_clock::now() - broken_at_ >= milliseconds(kOutageWaitMs)) recovering_ = false;
  take_queued();
  // ranges_ + 1 parts at most: each range has one, and one is on its way. Probes have no rows and do not count.
  const bool sends = ready_ && batches_.unsent() && batches_.parts_in_flight() <= ranges_ + batches_.probes_in_flight();
  if (sends) send_next_part();
  if (ready_ && batches_.probe_due(steady_clock::now())) {
    const OutgoingPart probe = batches_.probe();
    send_part(probe, make_layer_step(probe));
  }
  publish_finished();
  return sends;
}

// A batch whose sender did not know yet that KV was lost may name pages that hold nothing any more.
void ChainRunner::take_queued() {
  // One batch at a time is cut into parts; the next one stays in the queue, where a loss of KV is still seen.
  while (!batches_.unsent()) {
    Queued queued;
    std::string lost;  // why; empty: it may be computed
    {
      const std::lock_guard lock(mutex_);
      if (queued_.empty()) return;
      queued = std::move(queued_.front());
      queued_.pop_front();
      if (!ready_ || queued.kv_epoch != kv_epoch_) lost = "the model's layers were lost: " + broken_;
    }
    // Also a batch that fails at once: results leave in the sequence of submission, and it has its position there.
    batches_.add(std::move(queued.batch), model_->weight_version());
    if (!lost.empty()) batches_.fail_newest(Status(StatusCode::kUnavailable, std::move(lost)));
  }
}

void ChainRunner::send_next_part() {
  const std::optional<OutgoingPart> next = batches_.next_part();
  if (!next) return;
  // Copies and page backing belong to the batch and are done before its first part, as in the other ranges.
  if (next->number == 0) {
    const Status copied = engine_->copy(next->batch->copies);
    // Half of the copies may be done here and none elsewhere: no page of the chain can be trusted.
    if (!copied.ok()) return break_chain(copied.message());
    for (const SequenceStep& sequence : next->batch->sequences) engine_->use_pages(sequence.pages);
    engine_->prefault_in_step();
  }
  send_part(*next, make_layer_step(*next));
}

void ChainRunner::send_part(const OutgoingPart& outgoing, wire::LayerStep step) {
  const Part& part = *outgoing.part;
  const kernels::Rows rows = engine_->rows(static_cast<int64_t>(part.tokens.size()));
  const auto begin = steady_clock::now();
  if (!part.tokens.empty()) {
    model_->embed(part.tokens, rows, engine_->ops());
    for (const FeatureRow& row : part.features) std::copy_n(row.embedding, rows.width, rows.row(row.row));
    engine_->forward(*model_, {.positions = part.positions,
                               .sequences = part.sequences,
                               .positions3 = part.positions3,
                               .additions = part.additions});
    step.media = pack_media(part, model_->layers().end, rows.width);
  }
  step.compute_us = {std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - begin).count()};
  step.chain_epoch = epoch_;
  step.stage_from = 0;
  step.stage_to = 1;
  step.weight_version = model_->weight_version();
  step.rows = pack_rows(rows);
  // Numbers and tables advance together and only for what is sent, in the sequence in which the ranges get it.
  step.number = next_number_++;
  tables_.begin_message();
  for (wire::LayerSequence& sequence : step.batch) tables_.reduce(sequence);
  step.rows.checksum = layer_checksum(step);
  metrics_.add_sent(step.rows.payload_bytes, begin);
  traces_.sent(step);
  wire::Message message = std::move(step);
  const Status sent = links_.next->send(message);
  // The tables here are ahead of the ranges' now; a new epoch empties both.
  if (!sent.ok()) break_chain(fmt::format("range 1 cannot be reached: {}", sent.message()));
}

void ChainRunner::on(wire::LayerResult&& result) {
  if (!ready_ || result.chain_epoch != epoch_) return;  // late
  ++results_;
  answer(result);
  publish_finished();
}

// A failure, or a result that is neither the next one nor an old one, means that messages were lost or changed: nothing
// behind it can be trusted.
void ChainRunner::answer(const wire::LayerResult& result) {
  // A repeated message; its answers have been used.
  if (batches_.was_back(result.step, result.part)) return;
  const int64_t rows = result.rows.seq;
  if (result.failure) return break_chain(result.failure->message);
  Status status = batches_.check_back(result.step, result.part, rows);
  if (!status.ok()) return break_chain(status.message());
  status = check_layer_result(result, chain_facts_);
  if (!status.ok()) return break_chain(fmt::format("from the last range: {}", status.message()));
  const int64_t answer_us = batches_.answer(rows_of(result.rows), result.compute_us, *model_);
  traces_.answered(result.step, result.part, result.compute_us);
  metrics_.add_back(result.compute_us, answer_us, result.rows.payload_bytes, batches_.parts_in_flight(),
                    steady_clock::now());
}

void ChainRunner::publish_finished() {
  bool any = false;
  while (std::optional<BatchResult> result = batches_.take_finished()) {
    const std::lock_guard lock(mutex_);
    finished_.push_back(std::move(*result));
    any = true;
  }
  // One waiter: the scheduler's thread alone calls poll().
  if (any) finished_changed_.notify_one();
}

}  // namespace millrace
