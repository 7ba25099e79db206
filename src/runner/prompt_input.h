// PromptInput: what of a prompt is no token: the rows that begin as features of pictures and sounds, and where its rows
// stand on the three axes of a multimodal rotary embedding.
//
// Immutable once it was made, shared by the sequence that it belongs to and the batches that compute it. A prompt of
// text has none: every user tests one pointer. Thread safety: const from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// The features of one picture or sound. Row r has `sets` vectors of hidden_size floats: its embedding, then, of a
// picture, what is added to it after layer 0, layer 1, ... (deepstack). A sound has the embedding alone.
struct MediaFeatures {
  int32_t rows = 0;
  int32_t sets = 1;
  int64_t hidden_size = 0;
  std::shared_ptr<const std::vector<float>> values;  // [sets, rows, hidden_size]

  const float* row(int32_t set, int32_t row) const {
    return values->data() + (int64_t{set} * rows + row) * hidden_size;
  }
};

// Rows [begin, begin + features.rows) of the prompt.
struct MediaSpan {
  int32_t begin = 0;
  std::string digest;  // equal digests, equal features
  MediaFeatures features;

  int32_t end() const { return begin + features.rows; }
};

struct PromptInput {
  std::vector<MediaSpan> spans;                 // ascending, apart from each other, all inside the prompt
  std::vector<std::array<float, 3>> positions;  // of each row of the prompt: time, height, width
  float delta = 0;                              // a generated row at position p stands at p + delta on all axes

  std::array<float, 3> position(int32_t row) const {
    if (row < static_cast<int32_t>(positions.size())) return positions[static_cast<std::size_t>(row)];
    const float at = static_cast<float>(row) + delta;
    return {at, at, at};
  }
  // The span that holds a row, or null.
  const MediaSpan* span_of(int32_t row) const {
    const auto behind = std::upper_bound(spans.begin(), spans.end(), row,
                                         [](int32_t at, const MediaSpan& span) { return at < span.begin; });
    if (behind == spans.begin()) return nullptr;
    const MediaSpan& span = *std::prev(behind);
    return row < span.end() ? &span : nullptr;
  }
};

}  // namespace millrace
