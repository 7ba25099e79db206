// Part: the rows of a batch that go through the layers together. A batch is cut into parts of at most max_rows rows;
// rows of one sequence stay in order, so a part attends to what the parts before it stored. The cut changes no bit
// of any row (kernels/ops.h).
//
// Thread safety: values; the compute thread's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "models/model.h"
#include "runner/runner.h"

namespace millrace {

inline constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// What the compute thread knows of each sequence of a batch.
struct SequenceState {
  std::size_t answer = kNone;  // its index in BatchResult::tokens
  bool skipped = false;        // its token in flight never came: nothing of it is computed
};
using SequenceStates = std::vector<SequenceState>;  // one for each sequence of the batch

// A row that answers something: `target` is its index in score_targets, or kNone.
struct LogitRow {
  int64_t row = 0;  // of the part
  std::size_t sequence = 0;
  std::size_t target = kNone;
  bool sample = false;
};

// A row of the part that begins as features, not as the embedding of a token.
struct FeatureRow {
  int64_t row = 0;
  const float* embedding = nullptr;  // hidden_size floats
};

// A row that is added to a sum, behind the final norm.
struct SummedRow {
  int64_t row = 0;
  int32_t position = 0;
  RowSum* sum = nullptr;
};

struct Part {
  std::vector<int32_t> tokens, positions;  // one for each row; 0 is the token of a row that begins as features
  std::vector<FeatureRow> features;
  std::vector<SourceRow> made_rows;
  // Empty where no sequence has a PromptInput: Step::positions3 and Step::additions.
  std::vector<std::array<float, 3>> positions3;
  std::vector<RowAddition> additions;
  std::vector<CapturedRow> captures;
  std::vector<SummedRow> sums;
  std::vector<kernels::AttentionSequence> sequences;
  std::vector<std::size_t> indices;  // of the batch's sequences: one for each of `sequences`
  std::vector<LogitRow> logit_rows;

  void clear();
};

// How far the parts of a batch have come: tokens before `done` of this sequence, and all sequences before it.
struct PartCursor {
  std::size_t sequence = 0;
  std::size_t done = 0;
};

// The next part: rows from the cursor on, one token a row, in the batch's order; no rows at the end of the batch. Spans
// of the batch's page tables are in it: it lives as long as the batch.
void cut_part(const Batch& batch, const SequenceStates& states, int32_t max_rows, PartCursor& cursor, Part& part);

}  // namespace millrace
