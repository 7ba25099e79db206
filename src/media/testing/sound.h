// Sounds for tests: WAV files with any header, tones, and how alike two signals are.
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <string_view>
#include <vector>

namespace millrace {

// A WAV file of which every field can be false.
struct WavFile {
  uint32_t riff_size = 0;  // 0: what the file has
  uint32_t tag = 1;
  uint32_t channels = 1;
  uint32_t rate = 16000;
  uint32_t bits = 16;
  uint32_t frame_bytes = 0;  // 0: channels * bits / 8
  uint32_t data_size = 0;    // 0: what `data` has
  std::vector<uint8_t> data;

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> out;
    const auto put = [&](uint32_t value, int width) {
      for (int i = 0; i < width; ++i) out.push_back(static_cast<uint8_t>(value >> 8 * i));
    };
    const auto name = [&](std::string_view text) { out.insert(out.end(), text.begin(), text.end()); };
    const uint32_t block = frame_bytes != 0 ? frame_bytes : channels * bits / 8;
    name("RIFF");
    put(riff_size != 0 ? riff_size : static_cast<uint32_t>(36 + data.size()), 4);
    name("WAVEfmt ");
    put(16, 4);
    put(tag, 2);
    put(channels, 2);
    put(rate, 4);
    put(rate * block, 4);
    put(block, 2);
    put(bits, 2);
    name("data");
    put(data_size != 0 ? data_size : static_cast<uint32_t>(data.size()), 4);
    out.insert(out.end(), data.begin(), data.end());
    return out;
  }
};

inline std::vector<uint8_t> float_bytes(std::span<const float> values) {
  std::vector<uint8_t> out(values.size_bytes());
  std::memcpy(out.data(), values.data(), values.size_bytes());
  return out;
}

inline std::vector<uint8_t> float_wav(std::span<const float> values, uint32_t rate, uint32_t channels = 1) {
  return WavFile{.tag = 3, .channels = channels, .rate = rate, .bits = 32, .data = float_bytes(values)}.bytes();
}

inline std::vector<float> tone(double frequency, int rate, std::size_t count, double amplitude = 0.5) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(amplitude * std::sin(2 * std::numbers::pi * frequency * static_cast<double>(i) / rate));
  }
  return out;
}

// The amplitude of the sine of this frequency in the signal, by a Hann-weighted correlation.
inline double amplitude_of(std::span<const float> samples, double frequency, int rate) {
  double real = 0;
  double imaginary = 0;
  double weight = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double at = static_cast<double>(i);
    const double w = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * (at + 0.5) / static_cast<double>(samples.size()));
    const double phase = 2 * std::numbers::pi * frequency * at / rate;
    real += w * samples[i] * std::cos(phase);
    imaginary += w * samples[i] * std::sin(phase);
    weight += w;
  }
  return 2 * std::hypot(real, imaginary) / weight;
}

inline double power(std::span<const float> samples) {
  double sum = 0;
  for (const float value : samples) sum += double{value} * value;
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

// Of `signal` against `reference`, in dB, over what both have: the reference is scaled to fit best.
inline double signal_to_noise(std::span<const float> signal, std::span<const float> reference) {
  const std::size_t size = std::min(signal.size(), reference.size());
  double cross = 0;
  for (std::size_t i = 0; i < size; ++i) cross += double{signal[i]} * reference[i];
  const double scale = cross / (power(reference.first(size)) * static_cast<double>(size));
  double noise = 0;
  for (std::size_t i = 0; i < size; ++i) noise += std::pow(signal[i] - scale * reference[i], 2);
  return 10 * std::log10(power(signal.first(size)) * static_cast<double>(size) / (noise + 1e-30));
}

}  // namespace millrace
