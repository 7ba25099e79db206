#include "media/log_mel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numbers>

#include "media/real_dft.h"

namespace millrace {
namespace {

// Slaney's scale: linear to 1000 Hz (15 mel), logarithmic above.
constexpr double kLinearEnd = 1000;
constexpr double kLinearMels = 15;
constexpr double kLogBase = 6.4;  // 27 mel for this ratio of frequencies
constexpr double kLogMels = 27;

double mel_of(double hertz) {
  if (hertz < kLinearEnd) return 3 * hertz / 200;
  return kLinearMels + std::log(hertz / kLinearEnd) * (kLogMels / std::log(kLogBase));
}
double hertz_of(double mel) {
  if (mel < kLinearMels) return 200 * mel / 3;
  return kLinearEnd * std::exp((std::log(kLogBase) / kLogMels) * (mel - kLinearMels));
}

// The weights of one filter that are not 0: those of the powers from `first` on.
struct Filter {
  std::size_t first = 0;
  std::vector<double> weights;
};

std::vector<Filter> make_filters(const MelConfig& config) {
  const double top = mel_of(kMaxMelFrequency);
  const auto edge = [&](int i) { return hertz_of(i == config.bins + 1 ? top : top / (config.bins + 1) * i); };
  const int powers = config.n_fft / 2 + 1;
  const int half_rate = config.rate / 2;
  std::vector<Filter> filters(static_cast<std::size_t>(config.bins));
  for (int bin = 0; bin < config.bins; ++bin) {
    Filter& filter = filters[static_cast<std::size_t>(bin)];
    const double low = edge(bin);
    const double middle = edge(bin + 1);
    const double high = edge(bin + 2);
    for (int k = 0; k < powers; ++k) {
      const double hertz = static_cast<double>(half_rate) / (powers - 1) * k;
      const double height = std::min((hertz - low) / (middle - low), (high - hertz) / (high - middle));
      if (height <= 0) continue;
      if (filter.weights.empty()) filter.first = static_cast<std::size_t>(k);
      filter.weights.push_back(height * (2 / (high - low)));
    }
  }
  return filters;
}

class Spectrogram {
 public:
  explicit Spectrogram(const MelConfig& config) : hop_(config.hop), filters_(make_filters(config)), dft_(config.n_fft) {
    const auto size = static_cast<std::size_t>(config.n_fft);
    for (std::size_t i = 0; i < size; ++i) {
      const double phase = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(size);
      window_.push_back(0.5 - 0.5 * std::cos(phase));
    }
    frame_.resize(size);
    powers_.resize(size / 2 + 1);
  }

  // log10 of the mel powers of one frame.
  void run(std::span<const float> samples, int64_t index, std::span<float> out) {
    const auto count = static_cast<int64_t>(samples.size());
    const int64_t begin = index * hop_ - dft_.size() / 2;
    for (std::size_t i = 0; i < frame_.size(); ++i) {
      int64_t at = std::abs(begin + static_cast<int64_t>(i));
      if (at >= count) at = 2 * (count - 1) - at;
      frame_[i] = window_[i] * samples[static_cast<std::size_t>(at)];
    }
    dft_.power(frame_, powers_);
    for (std::size_t bin = 0; bin < filters_.size(); ++bin) {
      const Filter& filter = filters_[bin];
      double sum = 0;
      for (std::size_t k = 0; k < filter.weights.size(); ++k) sum += filter.weights[k] * powers_[filter.first + k];
      out[bin] = static_cast<float>(std::log10(std::max(sum, 1e-10)));
    }
  }

 private:
  int64_t hop_;
  std::vector<Filter> filters_;
  RealDft dft_;
  std::vector<double> window_;
  std::vector<double> frame_;
  std::vector<double> powers_;
};

Status check_samples(std::span<const float> samples, const MelConfig& config) {
  if (mel_frames(static_cast<int64_t>(samples.size()), config) == 0) {
    return invalid_argument("the audio has {} samples; wanted at least {} for a spectrogram", samples.size(),
                            std::max(config.n_fft / 2 + 1, config.hop));
  }
  const auto bad = std::find_if(samples.begin(), samples.end(), [](float value) { return !std::isfinite(value); });
  if (bad == samples.end()) return ok_status();
  return invalid_argument("sample {} is {}; wanted a finite number", bad - samples.begin(), *bad);
}

}  // namespace

Status check_mel_config(const MelConfig& config) {
  if (config.bins < 1 || config.bins > kMaxMelBins) {
    return invalid_argument("feature_size is {}; wanted 1 to {}", config.bins, kMaxMelBins);
  }
  if (config.n_fft < 2 || config.n_fft > kMaxFftSize) {
    return invalid_argument("n_fft is {}; wanted 2 to {}", config.n_fft, kMaxFftSize);
  }
  if (!RealDft::supports(config.n_fft)) {
    return error(StatusCode::kUnsupported, "n_fft is {}; wanted an even number without prime factors over 5",
                 config.n_fft);
  }
  if (config.hop < 1 || config.hop > config.n_fft) {
    return invalid_argument("hop_length is {}; wanted 1 to n_fft, which is {}", config.hop, config.n_fft);
  }
  // Below, filters would lie over half the rate.
  if (config.rate < 2 * kMaxMelFrequency) {
    return invalid_argument("sampling_rate is {}; wanted at least {}", config.rate, 2 * kMaxMelFrequency);
  }
  return ok_status();
}

int64_t mel_frames(int64_t samples, const MelConfig& config) {
  return samples <= config.n_fft / 2 ? 0 : samples / config.hop;
}

Result<std::vector<float>> log_mel(std::span<const float> samples, const MelConfig& config) {
  RETURN_IF_ERROR(check_mel_config(config));
  RETURN_IF_ERROR(check_samples(samples, config));
  try {
    const auto frames = static_cast<std::size_t>(mel_frames(static_cast<int64_t>(samples.size()), config));
    const auto bins = static_cast<std::size_t>(config.bins);
    std::vector<float> values(frames * bins);
    Spectrogram spectrogram(config);
    float greatest = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < frames; ++i) {
      const auto row = std::span(values).subspan(i * bins, bins);
      spectrogram.run(samples, static_cast<int64_t>(i), row);
      greatest = std::max(greatest, *std::max_element(row.begin(), row.end()));
    }
    for (float& value : values) value = (std::max(value, greatest - 8.0f) + 4.0f) / 4.0f;
    return values;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "no memory left for the spectrogram of {} samples", samples.size());
  }
}

}  // namespace millrace
