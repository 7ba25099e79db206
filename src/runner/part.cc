#include "runner/part.h"

#include <algorithm>

namespace millrace {
namespace {

// Of tokens [done, done + count) of `step`, which become the next rows: those that are scored, and the last one where
// a token follows it.
void add_logit_rows(const SequenceStep& step, std::size_t sequence, std::size_t done, std::size_t count, Part& part) {
  const std::size_t targets = step.score_targets.size(), end = done + count;
  const std::size_t score_begin = targets > 0 ? static_cast<std::size_t>(step.score_begin) : end;
  const auto row_of = [&](std::size_t token) { return static_cast<int64_t>(part.tokens.size() + token - done); };
  std::vector<LogitRow>& rows = part.logit_rows;
  for (std::size_t token = std::max(done, score_begin); token < std::min(end, score_begin + targets); ++token) {
    rows.push_back({.row = row_of(token), .sequence = sequence, .target = token - score_begin});
  }
  if (!step.sample || end < step.tokens.size()) return;
  if (rows.empty() || rows.back().row != row_of(end - 1)) {
    rows.push_back({.row = row_of(end - 1), .sequence = sequence});
  }
  rows.back().sample = true;
}

// What the last `count` rows of the part, which are at positions [position, position + count) of their sequence, begin
// with beside tokens.
void add_input(const PromptInput& input, int32_t position, std::size_t count, Part& part) {
  const auto first = static_cast<int64_t>(part.tokens.size() - count);
  for (std::size_t i = 0; i < count; ++i) {
    const int32_t at = position + static_cast<int32_t>(i);
    part.positions3.push_back(input.position(at));
    const MediaSpan* span = input.span_of(at);
    if (span == nullptr) continue;
    const int64_t row = first + static_cast<int64_t>(i);
    part.tokens[static_cast<std::size_t>(row)] = 0;
    part.features.push_back({row, span->features.row(0, at - span->begin)});
    for (int32_t set = 1; set < span->features.sets; ++set) {
      part.additions.push_back({set - 1, row, span->features.row(set, at - span->begin)});
    }
  }
}

// Rows without pictures before them stand at the same place on all axes.
void add_plain_positions(std::size_t count, Part& part) {
  for (std::size_t i = part.positions.size() - count; i < part.positions.size(); ++i) {
    const auto at = static_cast<float>(part.positions[i]);
    part.positions3.push_back({at, at, at});
  }
}

bool has_inputs(const Batch& batch) {
  return std::ranges::any_of(batch.sequences, [](const SequenceStep& step) { return step.input != nullptr; });
}

}  // namespace

void Part::clear() {
  tokens.clear();
  positions.clear();
  features.clear();
  made_rows.clear();
  positions3.clear();
  additions.clear();
  captures.clear();
  sums.clear();
  sequences.clear();
  indices.clear();
  logit_rows.clear();
}

void cut_part(const Batch& batch, const SequenceStates& states, int32_t max_rows, PartCursor& cursor, Part& part) {
  part.clear();
  const auto limit = static_cast<std::size_t>(max_rows);
  const bool inputs = has_inputs(batch);
  while (cursor.sequence < batch.sequences.size() && part.tokens.size() < limit) {
    const SequenceStep& sequence = batch.sequences[cursor.sequence];
    if (states[cursor.sequence].skipped) {
      cursor = {cursor.sequence + 1, 0};
      continue;
    }
    const std::size_t count = std::min(sequence.tokens.size() - cursor.done, limit - part.tokens.size());
    const int32_t position = sequence.position + static_cast<int32_t>(cursor.done);
    part.sequences.push_back({.row_begin = static_cast<int64_t>(part.tokens.size()),
                              .row_count = static_cast<int64_t>(count),
                              .kv_length_before = position,
                              .pages = sequence.pages});
    part.indices.push_back(cursor.sequence);
    add_logit_rows(sequence, cursor.sequence, cursor.done, count, part);
    for (std::size_t i = 0; i < count; ++i) {
      const int32_t at = position + static_cast<int32_t>(i);
      const auto row = static_cast<int64_t>(part.tokens.size());
      if (sequence.row_state) part.made_rows.push_back({row, sequence.row_state.get(), at});
      const bool summed = sequence.capture && sequence.capture->sum;
      if (summed) part.sums.push_back({row, at, sequence.capture->sum.get()});
      float* captured = sequence.capture && !summed ? sequence.capture->row(at) : nullptr;
      if (captured != nullptr) {
        part.captures.push_back({sequence.capture->layer, sequence.capture->final_norm, row, captured});
      }
      part.tokens.push_back(sequence.tokens[cursor.done + i]);
      part.positions.push_back(at);
    }
    if (sequence.input != nullptr) {
      add_input(*sequence.input, position, count, part);
    } else if (inputs) {
      add_plain_positions(count, part);
    }
    cursor.done += count;
    if (cursor.done < sequence.tokens.size()) return;
    cursor = {cursor.sequence + 1, 0};
  }
}

}  // namespace millrace
