#include "runner/chain_batches.h"

#include <algorithm>
#include <utility>

namespace millrace {

using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::steady_clock;

void ChainBatches::add(Batch batch, uint64_t version) {
  CHECK(!unsent());
  Running& running = *batches_.emplace_back(std::make_unique<Running>());
  running.batch = std::move(batch);
  BatchResult& result = running.result;
  result.step = running.batch.step;
  result.weight_version = version;
  if (last_end_) {
    const auto idle = duration_cast<microseconds>(steady_clock::now() - *last_end_);
    result.idle_us = std::max<int64_t>(0, idle.count());
  }
  result.status = check_.check(running.batch);
  if (running.batch.weight_version != 0 && running.batch.weight_version != version) {
    result.status =
        internal_error("the batch names the weight version {}; {} serves", running.batch.weight_version, version);
  }
  if (!result.status.ok()) {
    running.all_sent = true;
    return;
  }
  running.states = answers_.begin(running.batch, result);
}

std::optional<OutgoingPart> ChainBatches::next_part() {
  if (!unsent()) return std::nullopt;
  Running& running = *batches_.back();
  cut_part(running.batch, running.states, max_rows_, running.cursor, part_);
  running.all_sent = running.cursor.sequence >= running.batch.sequences.size();
  const bool copies = running.parts_sent == 0 && !running.batch.copies.empty();
  if (part_.tokens.empty() && !copies) return std::nullopt;
  SentPart& sent = parts_.emplace_back();
  sent.batch = &running;
  sent.number = running.parts_sent++;
  sent.logit_rows = part_.logit_rows;
  for (std::size_t i = 0; i < sent.logit_rows.size(); ++i) sent.logit_rows[i].row = static_cast<int64_t>(i);
  sent.sent = steady_clock::now();
  return OutgoingPart{&running.batch, sent.number, &part_};
}

bool ChainBatches::probe_due(steady_clock::time_point now) const {
  constexpr auto limit = std::chrono::milliseconds(kProbeMs);
  if (parts_.empty() || probes_in_flight() >= kMaxProbes) return false;
  return now - parts_.front().sent >= limit && now - parts_.back().sent >= limit;
}

// It is numbered as one more part of the batch that has the newest one.
OutgoingPart ChainBatches::probe() {
  CHECK(!parts_.empty());
  Running& running = *parts_.back().batch;
  part_.clear();
  parts_.push_back({.batch = &running, .number = running.parts_sent++, .probe = true, .sent = steady_clock::now()});
  return {&running.batch, parts_.back().number, &part_};
}

std::size_t ChainBatches::probes_in_flight() const {
  return static_cast<std::size_t>(std::ranges::count_if(parts_, [](const SentPart& sent) { return sent.probe; }));
}

Status ChainBatches::check_back(uint64_t step, uint32_t number, int64_t rows) const {
  if (parts_.empty()) return invalid_argument("step {}, part {} came back; wanted none", step, number);
  const SentPart& sent = parts_.front();
  if (sent.batch->batch.step != step || sent.number != number) {
    return invalid_argument("step {}, part {} came back; wanted step {}, part {}", step, number, sent.batch->batch.step,
                            sent.number);
  }
  const auto wanted = static_cast<int64_t>(sent.logit_rows.size());
  if (rows == wanted) return ok_status();
  return invalid_argument("step {}, part {} came back with {} rows; wanted {}", step, number, rows, wanted);
}

int64_t ChainBatches::answer(kernels::ConstRows rows, std::span<const int64_t> compute_us, const Model& model) {
  const SentPart& sent = parts_.front();
  Running& running = *sent.batch;
  const auto begin = steady_clock::now();
  if (running.result.status.ok()) {
    answers_.answer(running.batch, running.states, sent.logit_rows, rows, model, running.result);
  }
  running.compute_us.resize(std::max(running.compute_us.size(), compute_us.size()));
  for (std::size_t i = 0; i < compute_us.size(); ++i) running.compute_us[i] += compute_us[i];
  const int64_t answer_us = duration_cast<microseconds>(steady_clock::now() - begin).count();
  if (!compute_us.empty()) running.compute_us[0] += answer_us;
  end_part();
  return answer_us;
}

void ChainBatches::end_part() {
  Running& running = *parts_.front().batch;
  last_back_ = {running.batch.step, parts_.front().number};
  parts_.pop_front();
  ++running.parts_back;
  if (running.finished()) answers_.end_batch();
}

void ChainBatches::fail_newest(const Status& status) {
  Running& running = *batches_.back();
  CHECK(running.parts_sent == 0);
  running.result.status = status;
  running.result.tokens.clear();
  running.all_sent = true;
}

void ChainBatches::fail_all(const Status& status) {
  parts_.clear();
  for (const std::unique_ptr<Running>& running : batches_) {
    if (running->finished()) continue;
    running->result.status = status;
    running->result.tokens.clear();
    running->all_sent = true;
    running->parts_back = running->parts_sent;
  }
}

std::optional<BatchResult> ChainBatches::take_finished() {
  if (batches_.empty() || !batches_.front()->finished()) return std::nullopt;
  const std::unique_ptr<Running> running = std::move(batches_.front());
  batches_.pop_front();
  last_end_ = steady_clock::now();
  if (!running->compute_us.empty()) running->result.compute_us = std::ranges::max(running->compute_us);
  return std::move(running->result);
}

}  // namespace millrace
