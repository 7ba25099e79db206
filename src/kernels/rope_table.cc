#include "kernels/rope_table.h"

#include <cmath>

namespace millrace::kernels {

void fill_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                     Rows sin) {
  for (std::size_t r = 0; r < positions.size(); ++r) {
    float* cos_row = cos.row(static_cast<int64_t>(r));
    float* sin_row = sin.row(static_cast<int64_t>(r));
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
      const float angle = static_cast<float>(positions[r]) * inv_freq[i];
      cos_row[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * scaling;
      sin_row[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * scaling;
    }
  }
}

}  // namespace millrace::kernels
