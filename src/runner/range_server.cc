#include "runner/range_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/trace.h"

namespace millrace {

RangeServer::RangeServer(std::shared_ptr<const Model> model, std::unique_ptr<LayerEngine> engine, RangeSlot slot,
                         ChainLinks links)
    : model_(std::move(model)),
      links_(std::move(links)),
      waker_(links_.inbox->waker()),
      engine_(std::move(engine)),
      slot_(std::move(slot)) {
  // Without either no hello could ever be accepted.
  CHECK(engine_ || slot_.make_engine);
  CHECK(slot_.index >= 1 && slot_.index < slot_.ranges && slot_.ranges <= wire::kMaxRanges);
}

void RangeServer::stop() {
  stopping_ = true;
  // After the flag: the receive() that this ends, or the next one, sees it.
  waker_->wake();
}

// Without work for kKvIdleMs it has the kernel back KV memory, a chunk at a time.
void RangeServer::run() {
  trace::name_thread("compute");
  bool idle = false;
  while (!stopping_) {
    // Idle for good only when prefault_idle() has nothing left to do: until then each empty wait does one more chunk.
    auto message = links_.inbox->receive(idle ? -1 : kKvIdleMs);
    if (message) {
      idle = false;
      std::visit([this](auto&& body) { on(std::forward<decltype(body)>(body)); }, std::move(*message));
    } else {
      idle = !engine_ || !engine_->prefault_idle();
    }
  }
}

Status RangeServer::check_hello(const wire::LayerHello& hello) {
  // Every difference is refused here, before a row is computed: later it would show as other tokens, or not at all.
  if (hello.stage_from + 1 != slot_.index) {
    return error(StatusCode::kConflict, "range {} sends to range {}; wanted range {}", hello.stage_from, slot_.index,
                 slot_.index - 1);
  }
  if (hello.ranges != slot_.ranges) {
    return error(StatusCode::kConflict, "the chain has {} ranges; wanted {}", hello.ranges, slot_.ranges);
  }
  const LayerRange layers = model_->layers();
  if (hello.layers_end != layers.begin) {
    return error(StatusCode::kConflict, "the ranges before hold layers up to {}; wanted {}, where this one begins",
                 hello.layers_end, layers.begin);
  }
  if (slot_.make_engine) RETURN_IF_ERROR(take_sizes(hello.facts));
  // Model, weights, instruction set, KV type: what must be equal for the same bits.
  return check_same_chain(slot_.facts, hello.facts);
}

// KV memory for the sizes of this first range, where they are others than those of the last one. Nothing is allocated
// for a chain that does not fit otherwise.
Status RangeServer::take_sizes(const wire::ChainFacts& first) {
  wire::ChainFacts facts = slot_.facts;
  // The sizes are the first range's to choose. All other facts are compared with ours unchanged.
  facts.page_size = first.page_size, facts.page_count = first.page_count;
  facts.host_page_count = first.host_page_count, facts.max_rows = first.max_rows;
  RETURN_IF_ERROR(check_same_chain(facts, first));
  if (engine_ && facts == slot_.facts) return ok_status();
  epoch_ = 0;  // the KV of the old one is gone
  // Freed before the new one is made: a host rarely has memory for both.
  engine_.reset();
  ASSIGN_OR_RETURN(engine_, slot_.make_engine(first));
  // Last: after an error there is no engine, and the next hello of any sizes tries again.
  slot_.facts = std::move(facts);
  return ok_status();
}

void RangeServer::on(wire::LayerHello&& hello) {
  // A failure of a range before is passed on untouched, so that the first range learns the first cause.
  if (!hello.failure) {
    const Status status = check_hello(hello);
    if (status.ok()) {
      begin_epoch(hello.chain_epoch);
    } else {
      LOG_ERROR("range {} refuses the chain: {}", slot_.index, status.message());
      hello.failure = wire::Failure{status.code(), fmt::format("range {}: {}", slot_.index, status.message())};
    }
  }
  // Also with a failure: a hello always goes round, as it is the only answer that the first range waits for.
  hello.stage_from = slot_.index;
  hello.layers_end = model_->layers().end;
  hello.weights_checksum = chain_checksum(hello.weights_checksum, model_->weights_checksum());
  send(std::move(hello));
}

void RangeServer::on(wire::LayerStep&& step) {
  if (!engine_ || step.chain_epoch != epoch_) {
    ++counters_.late;
    return;
  }
  if (step.stage_to != slot_.index) {
    ++counters_.unexpected;
    return;
  }
  // Without an answer: the answer to the first copy is on its way, or was lost with it.
  if (step.number < next_number_) {
    ++counters_.repeated;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  // Before the look at step.failure: all ranges must take the same tables from the same messages.
  Status status = take_tables(step);
  if (!step.failure && status.ok()) status = compute(step);
  if (!step.failure && !status.ok()) {
    ++counters_.refused;
    // The step goes on with its failure and without rows. Dropping it would leave the ranges behind with a gap, and the
    // first range without a reason.
    step.failure = wire::Failure{status.code(), fmt::format("range {}: {}", slot_.index, status.message())};
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  // One entry for each range, also where it failed: the first range reads them by position.
  step.compute_us.push_back(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  const kernels::Rows rows = engine_->rows(step.failure ? 0 : step.rows.seq);
  if (slot_.index + 1 == slot_.ranges) {
    send_answer(std::move(step), rows);
  } else {
    send_on(std::move(step), rows);
  }
}

// A hello that is repeated begins nothing.
void RangeServer::begin_epoch(uint64_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  next_number_ = 0;
  tables_.clear();
}

// Of every message, also of one that failed in a range before: all ranges have the same tables.
Status RangeServer::take_tables(const wire::LayerStep& step) {
  // Moved on in each case: after a gap one step fails, which ends the epoch, and not every step behind it.
  const uint64_t wanted = std::exchange(next_number_, step.number + 1);
  step_tables_.clear();
  if (step.number != wanted) return invalid_argument("step number {} came; wanted {}", step.number, wanted);
  tables_.begin_message();
  for (const wire::LayerSequence& sequence : step.batch) {
    ASSIGN_OR_RETURN(const std::span<const int32_t> table, tables_.expand(sequence));
    step_tables_.push_back(table);
  }
  return ok_status();
}

Status RangeServer::compute(wire::LayerStep& step) {
  // Against this range's sizes and weights; decode() has compared the message's parts with each other.
  RETURN_IF_ERROR(check_layer_step(step, step_tables_, slot_.facts));
  ASSIGN_OR_RETURN(const std::vector<PageCopy> copies, copies_of(step));
  // Copies between the tiers first, in the sequence of submission, as the first range does it: rows of this step may
  // read pages that they fill.
  RETURN_IF_ERROR(engine_->copy(copies));
  for (const std::span<const int32_t> table : step_tables_) engine_->use_pages(table);
  // Once for each batch, not for each of its parts.
  if (step.part == 0) engine_->prefault_in_step();
  if (step.rows.seq > 0) forward_rows(step);
  ++counters_.steps;
  return ok_status();
}

void RangeServer::forward_rows(const wire::LayerStep& step) {
  positions_.clear();
  sequences_.clear();
  for (std::size_t i = 0; i < step.batch.size(); ++i) {
    const wire::LayerSequence& sequence = step.batch[i];
    sequences_.push_back({.row_begin = static_cast<int64_t>(positions_.size()),
                          .row_count = sequence.rows,
                          .kv_length_before = sequence.token_index,
                          .pages = step_tables_[i]});
    for (int32_t row = 0; row < sequence.rows; ++row) positions_.push_back(sequence.token_index + row);
  }
  const kernels::Rows rows = engine_->rows(step.rows.seq);
  // decode() has compared the bytes with rows and width, and check_layer_step() both with this range's.
  CHECK(step.rows.bytes.bytes.size() == static_cast<std::size_t>(rows.count * rows.width) * sizeof(float));
  std::memcpy(rows.data, step.rows.bytes.bytes.data(), step.rows.bytes.bytes.size());
  Step layers{.positions = positions_, .sequences = sequences_};
  std::vector<RowAddition> additions;
  if (step.media) {
    additions = additions_of(*step.media, step.rows.hidden_size);
    layers.positions3 = positions_of(*step.media);
    layers.additions = additions;
  }
  engine_->forward(*model_, layers);
}

void RangeServer::send_on(wire::LayerStep&& step, kernels::ConstRows rows) {
  step.stage_from = slot_.index;
  step.stage_to = slot_.index + 1;
  step.rows = pack_rows(rows);
  // What layers behind this range still add to rows of pictures; the rest has been added.
  if (step.media) step.media = media_behind(std::move(*step.media), model_->layers().end, rows.width);
  // Last: it covers the numbers, the tables and the media too.
  step.rows.checksum = layer_checksum(step);
  send(std::move(step));
}

void RangeServer::send_answer(wire::LayerStep&& step, kernels::ConstRows rows) {
  const auto width = static_cast<std::size_t>(rows.width);
  // Only rows that are sampled or scored go back. Copied out of the engine's, which the next step overwrites.
  answers_.resize(step.failure ? 0 : step.answer_rows.size() * width);
  for (std::size_t i = 0; i * width < answers_.size(); ++i) {
    std::copy_n(rows.row(step.answer_rows[i]), width, answers_.data() + i * width);
  }
  const auto count = static_cast<int64_t>(answers_.size() / width);
  wire::LayerResult result{.chain_epoch = step.chain_epoch,
                           .stage_from = slot_.index,
                           .step = step.step,
                           .part = step.part,
                           .compute_us = std::move(step.compute_us),
                           .failure = std::move(step.failure),
                           .rows = pack_rows({answers_.data(), count, rows.width})};
  result.rows.checksum = layer_checksum(result);
  send(std::move(result));
}

// What cannot be sent is lost with its epoch: the first range is notified of a range that is gone, or waits
// kPartTimeoutMs.
void RangeServer::send(wire::Message message) {
  const Status status = links_.next->send(message);
  if (status.ok()) return;
  ++counters_.unsent;
  LOG_WARNING("range {}: a message to the next range is lost: {}", slot_.index, status.message());
}

}  // namespace millrace
