#include "runner/answers.h"

#include <algorithm>
#include <utility>

#include "base/trace.h"
#include "tensor/float_buffer.h"

namespace millrace {

Answers::Answers(const ModelConfig& config, ThreadPool& pool, kernels::Ops& ops, LogitsHook logits_hook,
                 RowSource* row_source)
    : hidden_size_(config.hidden_size),
      vocab_size_(config.vocab_size),
      logits_hook_(std::move(logits_hook)),
      pool_(pool),
      ops_(ops),
      row_source_(row_source),
      logit_hidden_(float_buffer(kMaxLogitRows, hidden_size_)),
      logits_(float_buffer(kMaxLogitRows, vocab_size_)) {
  for (int i = 0; i < pool_.size(); ++i) workers_.emplace_back(config.vocab_size);
  requests_.reserve(kMaxLogitRows);
  row_statuses_.resize(kMaxLogitRows);
  row_masks_.resize(kMaxLogitRows);
}

SequenceStates Answers::begin(Batch& batch, BatchResult& result) {
  SequenceStates states(batch.sequences.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    SequenceStep& sequence = batch.sequences[i];
    Status status = in_flight_tokens_.resolve(sequence);
    states[i].skipped = !status.ok();
    if (!sequence.answers()) continue;
    states[i].answer = result.tokens.size();
    SampledToken& answer = result.tokens.emplace_back();
    answer.request = sequence.request;
    answer.status = std::move(status);
    if (!states[i].skipped) answer.prompt_logprobs.resize(sequence.score_targets.size());
  }
  return states;
}

// kMaxLogitRows at a time, copied together: the rows between them answer nothing.
void Answers::answer(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                     kernels::ConstRows hidden, const Model& model, BatchResult& result) {
  float* group_rows = logit_hidden_.as<float>().data();
  for (std::size_t first = 0; first < rows.size(); first += kMaxLogitRows) {
    const std::span<const LogitRow> group =
        rows.subspan(first, std::min<std::size_t>(kMaxLogitRows, rows.size() - first));
    requests_.clear();
    for (std::size_t i = 0; i < group.size(); ++i) {
      std::copy_n(hidden.row(group[i].row), hidden_size_, group_rows + static_cast<int64_t>(i) * hidden_size_);
      requests_.push_back(batch.sequences[group[i].sequence].request);
    }
    const auto count = static_cast<int64_t>(group.size());
    const kernels::Rows logits(logits_.as<float>().data(), count, vocab_size_);
    trace::Span span("head and sample", "runner");
    span.note("rows", count);
    model.head(kernels::ConstRows(group_rows, count, hidden_size_), logits, ops_);
    if (logits_hook_) logits_hook_(batch.step, requests_, logits);
    answer_group(batch, states, group, logits, result);
    if (row_source_ != nullptr) take_group(batch, states, group, {group_rows, count, hidden_size_}, model, result);
  }
}

// One thread: a request's matcher goes on from its last step.
void Answers::fill_masks(const Batch& batch, std::span<const LogitRow> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    row_masks_[i] = {};
    row_statuses_[i] = rows[i].sample ? masks_.fill(batch.sequences[rows[i].sequence], row_masks_[i]) : ok_status();
  }
}

Status Answers::answer_row(const LogitRow& row, const Batch& batch, std::span<float> logits, std::size_t index,
                           RowWorker& worker, SampledToken& out) {
  const SequenceStep& sequence = batch.sequences[row.sequence];
  if (row.target != kNone) {
    RETURN_IF_ERROR(worker.score(logits, sequence, row.target, out.prompt_logprobs[row.target]));
  }
  if (!row.sample || !row_statuses_[index].ok()) return row_statuses_[index];
  const grammar::TokenMask& mask = row_masks_[index];
  return worker.sample(logits, sequence, out, mask.empty() ? nullptr : &mask);
}

// What was drawn for sequences with a RowState, with the rows that it was drawn from.
void Answers::take_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                         kernels::ConstRows hidden, const Model& model, BatchResult& result) {
  drawn_tokens_.clear();
  std::vector<SampledToken*> answers;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SequenceStep& sequence = batch.sequences[rows[i].sequence];
    SampledToken& answer = result.tokens[states[rows[i].sequence].answer];
    if (sequence.row_state == nullptr || !rows[i].sample || !answer.status.ok()) continue;
    const auto position = static_cast<int32_t>(sequence.position + static_cast<int64_t>(sequence.tokens.size()));
    drawn_tokens_.push_back(
        {sequence.row_state.get(), position, answer.token, hidden.row(static_cast<int64_t>(i)), {}});
    answers.push_back(&answer);
  }
  if (drawn_tokens_.empty()) return;
  row_source_->taken(drawn_tokens_, model, ops_);
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i]->status = std::move(drawn_tokens_[i].status);
}

// Rows of one sequence may be with several workers: each row has its own status, and the first bad one becomes that of
// the sequence.
void Answers::answer_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                           kernels::Rows logits, BatchResult& result) {
  fill_masks(batch, rows);
  const auto answer_of = [&](const LogitRow& row) -> SampledToken& {
    return result.tokens[states[row.sequence].answer];
  };
  pool_.parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const std::span<float> values(logits.row(i), static_cast<std::size_t>(logits.width));
      row_statuses_[index] = answer_row(rows[index], batch, values, index, workers_[static_cast<std::size_t>(worker)],
                                        answer_of(rows[index]));
    }
  });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Status& status = answer_of(rows[i]).status;
    if (status.ok()) status = std::move(row_statuses_[i]);
  }
}

}  // namespace millrace
