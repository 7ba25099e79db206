// The audio encoder of Qwen3-Omni's thinker, as config.json describes it (audio_config beside text_config and
// vision_config). Range-checked like everything in formats/model_config.h; defaults are those of transformers 5.12's
// Qwen3OmniMoeAudioEncoderConfig.
//
// transformers counts the rows of an audio by a formula that holds for chunks of 100 frames alone
// (models/omni/audio_rows.h), so an n_window other than 50 is refused.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

inline constexpr int kMaxAudioLayers = 256;
inline constexpr int kMaxAudioMelBins = 512;
inline constexpr int kMaxAudioConvChannels = 1 << 14;  // of the convolutions
inline constexpr int kMaxAudioWindow = 1 << 20;        // frames
inline constexpr int kMaxAudioConvChunks = 1 << 20;    // chunks that transformers convolves at one go
inline constexpr int kServedAudioWindow = 50;          // n_window
inline constexpr int kMinAudioSourcePositions = 13;    // the rows of a chunk
inline constexpr int kMaxPositionsPerSecond = 1 << 16;

enum class AudioActivation : uint8_t { kGelu, kGeluTanh };

struct AudioConfig {
  int mel_bins = 0;
  int layers = 0;
  int heads = 0;  // divides d_model
  int ffn = 0;    // inner size of a layer's MLP
  int d_model = 0;
  int n_window = 0;                // 2 * n_window frames are one chunk
  int n_window_infer = 0;          // frames of an attention window, at least one chunk
  int output_dim = 0;              // of the language model
  int downsample_hidden_size = 0;  // channels of the convolutions
  int conv_chunksize = 0;          // has no influence on the features
  int max_source_positions = 0;
  AudioActivation activation = AudioActivation::kGelu;
  int position_id_per_seconds = 0;  // of a video's temporal axis

  // Ids of the vocabulary.
  int32_t audio_token_id = 0;
  int32_t audio_start_token_id = 0;
  int32_t audio_end_token_id = 0;

  int head_dim() const { return d_model / heads; }
  int chunk_frames() const { return 2 * n_window; }
  // Chunks whose rows see each other.
  int window_chunks() const { return n_window_infer / chunk_frames(); }

  friend bool operator==(const AudioConfig&, const AudioConfig&) = default;
};

// From the object that holds text_config and audio_config. `hidden_size` and `vocab_size`: of the language model.
// kUnsupported for a value that would change the features and is not served.
Result<AudioConfig> parse_audio_config(const Json& root, int hidden_size, int vocab_size);

}  // namespace millrace
