// How a ChainRunner's epochs begin and end: hellos, losses of ranges, and what becomes of the batches in flight.
#include <utility>

#include "base/log.h"
#include "runner/chain_runner.h"
#include "runner/layer_step.h"

namespace millrace {

void ChainRunner::begin_epoch() {
  ++epoch_;
  next_number_ = 0;
  tables_.clear();
  ready_ = false;
  refused_ = false;
  send_hello();
}

// Range 1 may not be there yet: it is tried again every kHelloRetryMs.
void ChainRunner::send_hello() {
  hello_sent_ = std::chrono::steady_clock::now();
  wire::Message hello = wire::LayerHello{.chain_epoch = epoch_,
                                         .stage_from = 0,
                                         .ranges = ranges_,
                                         .layers_end = engine_->layers().end,
                                         .facts = chain_facts_,
                                         .failure = {},
                                         .weights_checksum = chain_checksum(0, model_->weights_checksum())};
  const Status sent = links_.next->send(hello);
  if (!sent.ok()) LOG_DEBUG("range 1 is not there yet: {}", sent.message());
}

// A range that was started again from files with other bytes would go on with requests that the first ones began, and
// give other tokens under the same version.
Status ChainRunner::check_weights(uint64_t checksum) const {
  const std::lock_guard lock(mutex_);
  if (weights_checksum_ == 0 || weights_checksum_ == checksum) return ok_status();
  return error(StatusCode::kConflict,
               "the weights of the layer ranges have the checksum {:016x}; wanted {:016x}, those that they first "
               "served: put the model's files back and restart the range that was started last",
               checksum, weights_checksum_);
}

void ChainRunner::on(wire::LayerHello&& hello) {
  if (ready_ && (hello.chain_epoch < first_epoch_ || hello.chain_epoch > epoch_)) {
    return break_chain("another first range has begun an epoch");  // in which the ranges drop what is sent from here
  }
  if (hello.chain_epoch != epoch_ || ready_ || refused_) return;  // late, or of a second try
  Status status;
  if (hello.failure) {
    status = Status(hello.failure->code, hello.failure->message);
  } else if (hello.layers_end != chain_facts_.layers || hello.stage_from + 1 != ranges_) {
    status = error(StatusCode::kConflict, "{} ranges hold layers [0, {}); wanted {} with all {}", hello.stage_from + 1,
                   hello.layers_end, ranges_, chain_facts_.layers);
  } else {
    status = check_weights(hello.weights_checksum);
  }
  ready_ = status.ok();
  refused_ = !ready_;
  recovering_ = false;
  {
    const std::lock_guard lock(mutex_);
    complete_ = ready_;
    refusal_ = status;
    if (refused_) broken_ = status.message();
    if (ready_) weights_checksum_ = hello.weights_checksum;
  }
  state_changed_.notify_all();
  if (ready_) {
    LOG_INFO("the chain of {} ranges is complete", ranges_);
  } else {
    LOG_ERROR("the chain is refused: {}", status.message());
  }
}

// Of those at the same time the first one is reported.
void ChainRunner::take_losses() {
  std::deque<Loss> losses;
  {
    const std::lock_guard lock(mutex_);
    losses.swap(losses_);
  }
  for (const Loss& loss : losses) {
    liveness_.forget(loss.range);
    break_chain(loss.how);
    if (!loss.final) continue;
    recovering_ = false;
    const std::lock_guard lock(mutex_);
    refusal_ = error(StatusCode::kUnavailable, "{} is gone and is not started again", loss.how);
    state_changed_.notify_all();
  }
}

// A silent range may be stopped for a while only: it is taken for lost at once, and ended later.
void ChainRunner::check_liveness() {
  if (ready_ && links_.peers && links_.peers->send_alive()) liveness_.expect_all();
  liveness_.look(std::chrono::steady_clock::now());
  const std::optional<uint32_t> silent = liveness_.silent_over(kRangeSilentMs);
  if (silent && ready_) break_chain(fmt::format("range {} (silent for {} s)", *silent, kRangeSilentMs / 1000));
  const std::optional<uint32_t> hung = liveness_.silent_over(kRangeHungMs);
  if (!hung || !links_.peers) return;
  LOG_ERROR("range {} was silent for {} s and is started again", *hung, kRangeHungMs / 1000);
  liveness_.forget(*hung);
  links_.peers->restart(*hung);
}

void ChainRunner::check_part_timeout() {
  if (batches_.parts_in_flight() == 0) return;
  const auto age = std::chrono::steady_clock::now() - batches_.oldest_sent();
  if (age < std::chrono::milliseconds(kPartTimeoutMs)) return;
  break_chain(fmt::format("a step was not back after {} s", kPartTimeoutMs / 1000));
}

// The scheduler sees the new kv_epoch() before the batches that failed with it.
void ChainRunner::break_chain(const std::string& why) {
  if (ready_) LOG_ERROR("the chain of layer ranges is broken: {}", why);
  const auto now = std::chrono::steady_clock::now();
  if (!recovering_.exchange(true)) broken_at_ = now;
  traces_.lost();
  metrics_.add_break(now);
  {
    const std::lock_guard lock(mutex_);
    complete_ = false;
    broken_ = why;
    ++kv_epoch_;
  }
  batches_.fail_all(error(StatusCode::kUnavailable, "the model's layers were lost: {}", why));
  publish_finished();
  begin_epoch();
}

}  // namespace millrace
