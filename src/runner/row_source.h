// RowSource: where the rows of a sequence begin that are no embeddings of its tokens, neither in its prompt nor behind
// it: those of a talker, which are sums of text and of the codes of a frame. The runner asks it for rows before they go
// through the layers, and gives it each drawn token with the row that it was drawn from, so that the next row can be
// made. Prompt features of pictures and audio need none of this (runner/prompt_input.h).
//
// The same bits: a row depends on its own sequence and position alone, also when it is computed again after a
// retraction. So what a token became stays in the RowState until the sequence ends.
//
// Owner: the runner; it outlives the runner's threads. Thread safety: the compute thread's. A RowState is shared
// between its maker and the batches that compute it, and guards itself.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/ops.h"

namespace millrace {

class Model;

// What a RowSource knows of one sequence: of its own kind.
class RowState {
 public:
  virtual ~RowState() = default;
};

// Row `row` of a part is at `position` of its sequence.
struct SourceRow {
  int64_t row = 0;
  RowState* sequence = nullptr;
  int32_t position = 0;
};

// `token` will stand at `position`.
struct DrawnToken {
  RowState* sequence = nullptr;
  int32_t position = 0;
  int32_t token = 0;
  const float* hidden = nullptr;  // the row that it was drawn from: hidden_size floats that have passed every layer
  Status status;                  // set by taken(): not OK fails the sequence
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Fills hidden.row(row) of each. All that they need is there: the scheduler plans no row before
  // (Scheduler::release_rows), and no row behind a token that was not taken().
  virtual void fill(std::span<const SourceRow> rows, kernels::Rows hidden, const Model& model, kernels::Ops& ops) = 0;
  // At most kMaxLogitRows tokens of one batch (runner/head_and_sampler.h).
  virtual void taken(std::span<DrawnToken> tokens, const Model& model, kernels::Ops& ops) = 0;
};

}  // namespace millrace
