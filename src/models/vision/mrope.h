// Where the rows of a prompt with pictures stand on the three axes of Qwen3-VL's rotary embedding (Bai et al.,
// "Qwen3-VL Technical Report", 2025; transformers' get_rope_index):
//
//   text       the next number on all axes
//   a picture  of h x w rows that begins at number n: row (y, x) stands at (n, n + y, n + x); what follows begins at
//              n + max(h, w)
//   a sound    as text (Qwen3-Omni; models/omni/positions_test.cc)
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace millrace {

// Rows [begin, begin + height * width) of a prompt, in rows from top to bottom. The edges count merged patches.
struct PictureRows {
  int32_t begin = 0;
  int32_t height = 0;
  int32_t width = 0;
};

struct MropePositions {
  std::vector<std::array<float, 3>> rows;  // time, height, width
  float delta = 0;                         // a generated row at position p stands at p + delta on all axes
};

// `pictures`: ascending, apart from each other, inside [0, rows) (CHECK).
inline MropePositions mrope_positions(int32_t rows, std::span<const PictureRows> pictures) {
  MropePositions out;
  out.rows.reserve(static_cast<std::size_t>(rows));
  int32_t next = 0;
  const auto text_until = [&](int32_t end) {
    while (static_cast<int32_t>(out.rows.size()) < end) {
      const auto at = static_cast<float>(next++);
      out.rows.push_back({at, at, at});
    }
  };
  for (const PictureRows& picture : pictures) {
    CHECK(picture.begin >= static_cast<int32_t>(out.rows.size()));
    text_until(picture.begin);
    for (int32_t y = 0; y < picture.height; ++y) {
      for (int32_t x = 0; x < picture.width; ++x) {
        out.rows.push_back({static_cast<float>(next), static_cast<float>(next + y), static_cast<float>(next + x)});
      }
    }
    next += std::max(picture.height, picture.width);
  }
  CHECK(static_cast<int32_t>(out.rows.size()) <= rows);
  text_until(rows);
  out.delta = static_cast<float>(next - rows);
  return out;
}

}  // namespace millrace
