// RowCapture: rows of a prompt that are wanted as they are between two layers, or behind them all: those of pictures
// and audio for a talker, which speaks from them; the last one as the prompt's embedding, or the sum of all.
//
// A row depends on its sequence alone, so that one which is computed again, after a retraction, writes the same bits.
// What came from the prefix cache passes no layers: the scheduler computes the rows of a capture whatever is cached.
//
// Owner: shared by its maker and the batches that compute it. Thread safety: the compute thread writes; the maker reads
// when the prompt has been computed, after which no batch has it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace millrace {

inline constexpr int32_t kNoRow = std::numeric_limits<int32_t>::max();

// Rows [begin, begin + rows) of the prompt.
struct CapturedSpan {
  int32_t begin = 0;
  int32_t rows = 0;
  std::shared_ptr<std::vector<float>> values;  // [rows, hidden_size]
  bool known = false;                          // they were computed for an earlier prompt: read, and never written

  int32_t end() const { return begin + rows; }
};

// The sum of rows [0, rows) of a prompt. Each is added once, in the sequence of their positions, so its bits depend on
// no cut; one that is computed again is left out.
struct RowSum {
  std::vector<double> values;  // hidden_size
  int32_t rows = 0;

  void add(int32_t position, const float* row) {
    if (position != rows) return;
    ++rows;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<double>(row[i]);
  }
};

struct RowCapture {
  int layer =
      0;  // rows as layers [0, layer) leave them, before deepstack of the last of these; 1 to the model's layers
  bool final_norm = false;  // behind the final norm too; `layer` is the model's layers
  int64_t hidden_size = 0;
  std::vector<CapturedSpan> spans;  // ascending, apart from each other
  std::shared_ptr<RowSum> sum;      // gets the rows, and the spans have no values; final_norm is set

  int32_t end() const { return spans.empty() ? 0 : spans.back().end(); }
  // The first row to compute of a span at or behind `position`; kNoRow: there is none.
  int32_t next(int32_t position) const {
    for (const CapturedSpan& span : spans) {
      if (span.known) continue;
      if (position < span.begin) return span.begin;
      if (position < span.end()) return position;
    }
    return kNoRow;
  }
  // hidden_size floats for the row at `position`; null: it is in no span that is computed.
  float* row(int32_t position) const {
    for (const CapturedSpan& span : spans) {
      if (span.known) continue;
      if (position < span.begin) return nullptr;
      if (position < span.end()) return span.values->data() + int64_t{position - span.begin} * hidden_size;
    }
    return nullptr;
  }
  // Other weights will compute the prompt: what is known or summed so far is forgotten. No batch has the capture.
  void restart() {
    if (sum) {
      std::ranges::fill(sum->values, 0);
      sum->rows = 0;
    }
    for (CapturedSpan& span : spans) {
      if (std::exchange(span.known, false)) span.values = std::make_shared<std::vector<float>>(span.values->size());
    }
  }
};

}  // namespace millrace
