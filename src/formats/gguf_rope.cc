// llama3 rope scaling in GGUF: the file holds what the frequencies are divided by, not the parameters that it came
// from.
#include <algorithm>
#include <array>
#include <cmath>

#include "formats/gguf_model.h"

namespace millrace {
namespace {

// Llama 3.1, 3.2 and 3.3 and what was made from them: low 1, high 4, and the context of Llama 3; powers of two besides.
constexpr double kLowFreqFactor = 1.0;
constexpr double kHighFreqFactor = 4.0;
constexpr int kLeastContext = 1 << 6;
constexpr int kMostContext = 1 << 20;
constexpr double kTolerance = 1e-4;  // relative; the files' writers compute in float

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Written so that a NaN is not close.
    if (!(std::abs(double{a[i]} - double{b[i]}) <= kTolerance * std::abs(double{b[i]}))) return false;
  }
  return true;
}

}  // namespace

std::vector<float> llama3_rope_factors(const RopeConfig& rope, int head_dim) {
  std::vector<float> out;
  const double context = rope.original_max_position_embeddings;
  for (int i = 0; i < head_dim; i += 2) {
    const double wavelength = 2 * M_PI * std::pow(rope.theta, static_cast<double>(i) / head_dim);
    double factor = rope.factor;
    if (wavelength < context / rope.high_freq_factor) {
      factor = 1;
    } else if (wavelength <= context / rope.low_freq_factor) {
      const double smooth =
          (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      factor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    out.push_back(static_cast<float>(factor));
  }
  return out;
}

std::optional<RopeConfig> llama3_rope_of(const std::vector<float>& factors, double theta, int head_dim) {
  if (factors.empty()) return std::nullopt;
  RopeConfig rope;
  rope.type = RopeType::kLlama3;
  rope.theta = theta;
  rope.factor = *std::max_element(factors.begin(), factors.end());
  rope.low_freq_factor = kLowFreqFactor;
  rope.high_freq_factor = kHighFreqFactor;
  if (!(rope.factor > 1)) return std::nullopt;
  std::optional<RopeConfig> found;
  for (int context = kLeastContext; context <= kMostContext; context *= 2) {
    rope.original_max_position_embeddings = context;
    if (!close(factors, llama3_rope_factors(rope, head_dim))) continue;
    // Several contexts fit where no frequency lies between the borders; Llama 3's own is then as good as any.
    constexpr int kLlama3Context = 8192;
    if (!found || context == kLlama3Context) found = rope;
  }
  return found;
}

}  // namespace millrace
