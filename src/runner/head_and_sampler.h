// HeadAndSampler: what the rows that have passed all layers answer: the vocabulary head, penalties and masks, draws and
// scores. The only code that reads logits. A draw depends on (seed, position) and the row's logits alone.
//
// Owner: a runner. Thread safety: none: the compute thread's. The pool and the ops outlive it. Nothing is allocated for
// activations after it was made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "runner/grammar_masks.h"
#include "runner/part.h"
#include "runner/row_source.h"
#include "runner/row_worker.h"
#include "runner/runner.h"
#include "runner/runner_options.h"
#include "runner/tokens_in_flight.h"

namespace millrace {

inline constexpr int32_t kMaxLogitRows = 32;  // rows that go through the vocabulary head together

class HeadAndSampler {
 public:
  // `row_source` outlives it; null: no sequence has a RowState.
  HeadAndSampler(const ModelConfig& config, ThreadPool& pool, kernels::Ops& ops, LogitsHook logits_hook,
                 RowSource* row_source = nullptr);

  // An answer in the result for each sequence that has one, and the tokens in flight filled in. A sequence whose token
  // never came fails alone and is skipped.
  SequenceStates begin(Batch& batch, BatchResult& result);

  // Heads, samples and scores: hidden.row(rows[i].row) answers rows[i]. A row that fails costs its sequence alone.
  void answer(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
              kernels::ConstRows hidden, const Model& model, BatchResult& result);

  // After the last rows of a batch.
  void end_batch() { masks_.end_batch(); }
  // What the batch sampled is what the tokens in flight of the next one stand for. For batches that are computed one
  // after the other.
  void remember(const Batch& batch, const BatchResult& result) { in_flight_tokens_.remember(batch, result); }

 private:
  void answer_rows(const Batch& batch, const SequenceStates& states, const Model& model, BatchResult& result);
  void fill_mask(const SequenceStep& sequence, const LogitRow& row, std::size_t index);
  bool needs_logits(const SequenceStep& sequence) const;
  bool draw_forced(const SequenceStep& sequence, const LogitRow& row, std::size_t index, SampledToken& out);
  void look_ahead(const SequenceStep& sequence, SampledToken& out);
  Status answer_row(const LogitRow& row, const Batch& batch, std::span<float> logits, std::size_t index,
                    RowWorker& worker, SampledToken& out);
  void answer_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                    kernels::Rows logits, BatchResult& result);
  void take_group(const Batch& batch, const SequenceStates& states, std::span<const LogitRow> rows,
                  kernels::ConstRows hidden, const Model& model, BatchResult& result);

  const int64_t hidden_size_, vocab_size_;
  const LogitsHook logits_hook_;
  ThreadPool& pool_;
  kernels::Ops& ops_;
  RowSource* const row_source_;
  Buffer logit_hidden_, logits_;
  std::vector<RowWorker> workers_;  // one for each worker of the pool
  TokensInFlight in_flight_tokens_;
  GrammarMasks masks_;
  std::vector<LogitRow> group_;  // the rows in hand, which go through the head together
  std::vector<ReqId> requests_;  // theirs, as the next two
  std::vector<Status> row_statuses_;
  std::vector<grammar::TokenMask> row_masks_;  // empty: the row draws under no grammar
  std::vector<DrawnToken> drawn_tokens_;
};

}  // namespace millrace
