#include "kernels/rope_table.h"

#include <cmath>

namespace millrace::kernels {
namespace {

void fill(float angle, float scaling, float& cos, float& sin) {
  cos = static_cast<float>(std::cos(static_cast<double>(angle))) * scaling;
  sin = static_cast<float>(std::sin(static_cast<double>(angle))) * scaling;
}

}  // namespace

void fill_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                     Rows sin) {
  for (std::size_t r = 0; r < positions.size(); ++r) {
    float* cos_row = cos.row(static_cast<int64_t>(r));
    float* sin_row = sin.row(static_cast<int64_t>(r));
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      fill(static_cast<float>(positions[r]) * inv_freq[i], scaling, cos_row[i], sin_row[i]);
    }
  }
}

void fill_rope_table(std::span<const std::array<float, 3>> positions, std::span<const uint8_t> axes,
                     std::span<const float> inv_freq, float scaling, Rows cos, Rows sin) {
  for (std::size_t r = 0; r < positions.size(); ++r) {
    float* cos_row = cos.row(static_cast<int64_t>(r));
    float* sin_row = sin.row(static_cast<int64_t>(r));
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      fill(positions[r][axes[i]] * inv_freq[i], scaling, cos_row[i], sin_row[i]);
    }
  }
}

}  // namespace millrace::kernels
