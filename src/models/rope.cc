#include "models/rope.h"

#include <cmath>

namespace millrace {
namespace {

// `scalar / tensor` is reciprocal and product in PyTorch: two roundings, which are repeated here.
float divide_scalar(double scalar, float x) { return (1.0f / x) * static_cast<float>(scalar); }

float llama3_scaled(float inv_freq, const RopeConfig& rope) {
  const double context = rope.original_max_position_embeddings;
  const float low_freq_wavelength = static_cast<float>(context / rope.low_freq_factor);
  const float high_freq_wavelength = static_cast<float>(context / rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = divide_scalar(2 * M_PI, inv_freq);
  if (wavelength < high_freq_wavelength) return inv_freq;
  if (wavelength > low_freq_wavelength) return inv_freq / factor;
  const float smooth = (divide_scalar(context, wavelength) - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(head_dim / 2));
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(double{static_cast<float>(rope.theta)}, double{exponent}));
    float inv_freq = 1.0f / power;
    if (rope.type == RopeType::kLinear) inv_freq /= static_cast<float>(rope.factor);
    if (rope.type == RopeType::kLlama3) inv_freq = llama3_scaled(inv_freq, rope);
    result.push_back(inv_freq);
  }
  return result;
}

}  // namespace millrace
