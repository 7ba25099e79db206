// The log-mel spectrogram that Whisper's feature extractor makes, which encoders of speech take: within 1e-4 of Hugging
// Face transformers 5.12's WhisperFeatureExtractor for one audio alone, neither padded nor cut (padding=True,
// truncation=False, as Qwen3-Omni's processor calls it).
//
// That runs torch.stft in f32; here everything up to the logarithm is f64, so the difference is the reference's
// rounding: at most 4e-5 where measured, at bins 80 dB below the loudest.
//
// Thread safety: free functions without state. The bits depend on the samples and the configuration alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr int kMaxMelBins = 512;
inline constexpr int kMaxFftSize = 8192;
inline constexpr double kMaxMelFrequency = 8000;  // Hz, where the highest filter ends, whatever the rate

// preprocessor_config.json: feature_size, n_fft, hop_length, sampling_rate.
struct MelConfig {
  int bins = 128;    // 1 to kMaxMelBins
  int n_fft = 400;   // window, in samples; even, 2 to kMaxFftSize, prime factors 2, 3 and 5
  int hop = 160;     // between frames, in samples; 1 to n_fft
  int rate = 16000;  // of the samples, Hz

  friend bool operator==(const MelConfig&, const MelConfig&) = default;
};

// kInvalidArgument, kUnsupported: a value out of the ranges above, with the value seen and the value wanted.
Status check_mel_config(const MelConfig& config);

// samples / hop: what feature_attention_mask.sum() is. 0 for up to n_fft / 2 samples, where the reflection at the ends
// is not defined and transformers fails.
int64_t mel_frames(int64_t samples, const MelConfig& config);

// f32 [mel_frames, bins], frame by frame. Frame i is centred on sample i * hop; the signal is reflected at its ends.
// Value: m = log10(max(mel power, 1e-10)), at least the greatest m of all frames - 8, then (m + 4) / 4. Filters are
// triangles on Slaney's mel scale, each of the same area.
// kInvalidArgument: so few samples that mel_frames is 0, or one that is not finite; the errors of check_mel_config.
Result<std::vector<float>> log_mel(std::span<const float> samples, const MelConfig& config);

}  // namespace millrace
