#include "runner/head_and_sampler.h"

#include <algorithm>
#include <utility>

#include "base/trace.h"
#include "runner/masked_row.h"
#include "tensor/float_buffer.h"

namespace millrace {

HeadAndSampler::HeadAndSampler(const ModelConfig& config, ThreadPool& pool, kernels::Ops& ops, LogitsHook logits_hook,
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
  group_.reserve(kMaxLogitRows);
  requests_.reserve(kMaxLogitRows);
  row_statuses_.resize(kMaxLogitRows);
  row_masks_.resize(kMaxLogitRows);
}

SequenceStates HeadAndSampler::begin(Batch& batch, BatchResult& result) {
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
void HeadAndSampler::answer(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                            kernels::ConstRows hidden, const Model& model, BatchResult& result) {
  float* group_rows = logit_hidden_.as<float>().data();
  for (std::size_t next = 0; next < rows.size();) {
    group_.clear();
    requests_.clear();
    for (; next < rows.size() && group_.size() < kMaxLogitRows; ++next) {
      const LogitRow& row = rows[next];
      const SequenceStep& sequence = batch.sequences[row.sequence];
      fill_mask(sequence, row, group_.size());
      SampledToken& answer = result.tokens[states[row.sequence].answer];
      if (draw_forced(sequence, row, group_.size(), answer)) {
        look_ahead(sequence, answer);
        continue;
      }
      std::copy_n(hidden.row(row.row), hidden_size_, group_rows + static_cast<int64_t>(group_.size()) * hidden_size_);
      requests_.push_back(sequence.request);
      group_.push_back(row);
    }
    if (!group_.empty()) answer_rows(batch, states, model, result);
  }
}

void HeadAndSampler::answer_rows(const Batch& batch, const SequenceStates& states, const Model& model,
                                 BatchResult& result) {
  const auto count = static_cast<int64_t>(group_.size());
  const kernels::ConstRows hidden(logit_hidden_.as<float>().data(), count, hidden_size_);
  const kernels::Rows logits(logits_.as<float>().data(), count, vocab_size_);
  trace::Span span("head and sample", "runner");
  span.note("rows", count);
  model.head(hidden, logits, ops_);
  if (logits_hook_) logits_hook_(batch.step, requests_, logits);
  answer_group(batch, states, group_, logits, result);
  if (row_source_ != nullptr) take_group(batch, states, group_, hidden, model, result);
  for (const LogitRow& row : group_) {
    if (row.sample) look_ahead(batch.sequences[row.sequence], result.tokens[states[row.sequence].answer]);
  }
}

// By one thread: a request's matcher goes on from its last step.
void HeadAndSampler::fill_mask(const SequenceStep& sequence, const LogitRow& row, std::size_t index) {
  row_masks_[index] = {};
  row_statuses_[index] = row.sample ? masks_.fill(sequence, row_masks_[index]) : ok_status();
}

bool HeadAndSampler::needs_logits(const SequenceStep& sequence) const {
  const SamplingSpec& spec = sequence.sampling;
  return logits_hook_ || sequence.row_state != nullptr || spec.top_logprobs >= 0 || !spec.banned.empty();
}

// By one thread, as fill_mask().
void HeadAndSampler::look_ahead(const SequenceStep& sequence, SampledToken& out) {
  if (!sequence.sampling.grammar || sequence.forced_limit <= 0 || !out.status.ok() || needs_logits(sequence)) return;
  out.forced = masks_.forced_behind(sequence, out.token);
}

// Where the grammar leaves one token the logits decide nothing, and are not computed, unless something else reads them.
bool HeadAndSampler::draw_forced(const SequenceStep& sequence, const LogitRow& row, std::size_t index,
                                 SampledToken& out) {
  const SamplingSpec& spec = sequence.sampling;
  if (row_masks_[index].empty() || !row_statuses_[index].ok() || row.target != kNone) return false;
  if (needs_logits(sequence)) return false;
  const std::optional<int32_t> only = only_token(row_masks_[index]);
  if (!only || *only >= vocab_size_ || !check_sampling(spec, static_cast<int32_t>(vocab_size_)).ok()) return false;
  out.token = *only;
  return true;
}

Status HeadAndSampler::answer_row(const LogitRow& row, const Batch& batch, std::span<float> logits, std::size_t index,
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
void HeadAndSampler::take_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
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
void HeadAndSampler::answer_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                                  kernels::Rows logits, BatchResult& result) {
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
