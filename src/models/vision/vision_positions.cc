#include "models/vision/vision_positions.h"

#include <algorithm>

namespace millrace {
namespace {

// torch.linspace(0, edge - 1, count) in f32: from both ends to the middle.
std::vector<float> spread(int32_t edge, int32_t count) {
  std::vector<float> out(static_cast<std::size_t>(count), 0.0f);
  if (count < 2) return out;
  const auto end = static_cast<float>(edge - 1);
  const float step = end / static_cast<float>(count - 1);
  for (int32_t i = 0; i < count; ++i) {
    const bool first_half = i < count / 2;
    out[static_cast<std::size_t>(i)] =
        first_half ? step * static_cast<float>(i) : end - step * static_cast<float>(count - 1 - i);
  }
  return out;
}

// The two neighbours of a position on one edge of the square, and the share of the second.
struct Between {
  int32_t low = 0;
  int32_t high = 0;
  float share = 0;
};
Between between(float at, int32_t edge) {
  const auto low = static_cast<int32_t>(at);
  return {low, std::min(low + 1, edge - 1), at - static_cast<float>(low)};
}

}  // namespace

std::vector<std::array<int32_t, 2>> patch_positions(int32_t height, int32_t width, int32_t merge_size) {
  std::vector<std::array<int32_t, 2>> out;
  out.reserve(static_cast<std::size_t>(height) * static_cast<std::size_t>(width));
  for (int32_t block_y = 0; block_y < height; block_y += merge_size) {
    for (int32_t block_x = 0; block_x < width; block_x += merge_size) {
      for (int32_t y = 0; y < merge_size; ++y) {
        for (int32_t x = 0; x < merge_size; ++x) out.push_back({block_y + y, block_x + x});
      }
    }
  }
  return out;
}

void add_interpolated_positions(std::span<const float> table, int32_t edge, int32_t height, int32_t width,
                                std::span<const std::array<int32_t, 2>> positions, kernels::Rows x) {
  const std::vector<float> rows = spread(edge, height), columns = spread(edge, width);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const Between y = between(rows[static_cast<std::size_t>(positions[i][0])], edge);
    const Between c = between(columns[static_cast<std::size_t>(positions[i][1])], edge);
    const auto embedding = [&](int32_t row, int32_t column) { return table.data() + (row * edge + column) * x.width; };
    const float* corners[4] = {embedding(y.low, c.low), embedding(y.low, c.high), embedding(y.high, c.low),
                               embedding(y.high, c.high)};
    const float weights[4] = {(1 - y.share) * (1 - c.share), (1 - y.share) * c.share, y.share * (1 - c.share),
                              y.share * c.share};
    float* to = x.row(static_cast<int64_t>(i));
    for (int64_t k = 0; k < x.width; ++k) {
      float sum = corners[0][k] * weights[0];
      for (int corner = 1; corner < 4; ++corner) sum += corners[corner][k] * weights[corner];
      to[k] += sum;
    }
  }
}

}  // namespace millrace
