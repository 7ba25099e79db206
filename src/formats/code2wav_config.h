// The vocoder of Qwen3-Omni, as config.json describes it (code2wav_config). Range-checked like everything in
// formats/model_config.h; defaults are those of transformers 5.12's Qwen3OmniMoeCode2WavConfig.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

inline constexpr int kMaxCodebooks = 64;
inline constexpr int kMaxCodebookSize = 1 << 20;
inline constexpr std::size_t kMaxUpsamplings = 8;
inline constexpr int kMaxUpsampling = 64;  // of one layer

struct Code2WavConfig {
  int codebook_size = 0;
  int quantizers = 0;  // codes of a frame
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // even
  bool attention_bias = false;
  int sliding_window = 0;  // a frame sees itself and so many less one before it
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::vector<int> upsampling_ratios;  // before the decoder
  std::vector<int> upsample_rates;     // of the decoder's blocks
  int decoder_dim = 0;                 // channels before the first block; each halves them

  // Samples that `frames` frames from the beginning of a sound make. Each block of the decoder makes nothing of its
  // first row, so that this is less than frames times samples_per_frame().
  int64_t samples(int64_t frames) const;
  int64_t samples_per_frame() const;

  friend bool operator==(const Code2WavConfig&, const Code2WavConfig&) = default;
};

// From the object that holds code2wav_config. kUnsupported for a value that would change the sound and is not served.
Result<Code2WavConfig> parse_code2wav_config(const Json& root);
// From the text of config.json; `path` stands in the messages.
Result<Code2WavConfig> parse_code2wav_config(std::string_view text, std::string_view path);

}  // namespace millrace
