// How many rows of the language model a sound becomes. Thread safety: pure functions.
#pragma once

#include <cstdint>

namespace millrace {

inline constexpr int64_t kAudioChunkFrames = 100;  // 2 * n_window, which formats/audio_config.h fixes
inline constexpr int64_t kAudioChunkRows = 13;

// Of a convolution with three taps, stride 2 and a border of one.
constexpr int64_t conv_extent(int64_t size) { return (size + 1) / 2; }

// Rows of `frames` >= 0 frames of the log-mel spectrogram: transformers' _get_feat_extract_output_lengths. 0 frames
// have 0 rows; there transformers' encoder fails (its last chunk would have no begin), so a sound has at least one
// frame.
constexpr int64_t audio_rows(int64_t frames) {
  const int64_t rest = frames % kAudioChunkFrames;
  return frames / kAudioChunkFrames * kAudioChunkRows + conv_extent(conv_extent(conv_extent(rest)));
}

}  // namespace millrace
