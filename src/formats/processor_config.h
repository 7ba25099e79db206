// How a model wants its pictures and its sound: preprocessor_config.json, processor_config.json and
// video_preprocessor_config.json of a Hugging Face directory (Qwen3-VL, Qwen2-VL, Qwen3-Omni), as typed values in
// checked ranges.
//
// Defaults of absent fields are those of transformers 5.12's Qwen2VLImageProcessor, Qwen3VLVideoProcessor and
// WhisperFeatureExtractor. What would change the pixels and is not implemented is refused by name (kUnsupported):
// another resample than 3 (bicubic), a size by other keys than shortest_edge and longest_edge, any do_* that is true
// and unknown here, do_convert_rgb false, another class of processor; of sound another sampling rate, window or hop
// than Whisper's, and dither, which is noise.
//
// A directory whose video processor is Qwen2VLVideoProcessor (Qwen3-Omni) has pictures and sound, and no videos here.
//
// Thread safety: values and free functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

inline constexpr int kMaxConfigPatchSize = 256;
inline constexpr int kMaxConfigTemporalPatchSize = 16;
inline constexpr int kMaxConfigMergeSize = 16;
inline constexpr int64_t kMaxConfigImagePixels = 64ll << 20;
inline constexpr int64_t kMaxConfigVideoPixels = 1ll << 30;  // of all frames together
inline constexpr int kMaxConfigFrames = 1 << 16;
inline constexpr int kMaxConfigMelBins = 512;
inline constexpr int kServedSamplingRate = 16000;  // samples a second
inline constexpr int kServedFftSize = 400;         // samples of a window
inline constexpr int kServedHopLength = 160;       // samples from window to window

struct PixelConfig {
  int patch_size = 14;
  int temporal_patch_size = 2;
  int merge_size = 2;
  int64_t min_pixels = 56 * 56;  // size.shortest_edge, or min_pixels
  int64_t max_pixels = 28 * 28 * 1280;
  bool resize = true;
  bool rescale = true;
  bool normalize = true;
  double rescale_factor = 1 / 255.0;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> std = {0.26862954, 0.26130258, 0.27577711};
};

struct VideoConfig {
  PixelConfig pixels;  // min_pixels and max_pixels count all frames
  bool sample_frames = true;
  double fps = 2;
  int min_frames = 4;
  int max_frames = 768;
};

// The log-mel spectrogram of Whisper (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision",
// 2022).
struct SoundConfig {
  int mel_bins = 80;  // feature_size
  int sampling_rate = kServedSamplingRate;
  int n_fft = kServedFftSize;
  int hop_length = kServedHopLength;
};

struct ProcessorConfig {
  PixelConfig image;
  std::optional<VideoConfig> video;  // nullopt: the directory describes none
  std::optional<SoundConfig> sound;  // likewise
};

// From the text of one file; `path` stands in the messages.
Result<PixelConfig> parse_image_processor(std::string_view text, std::string_view path);
Result<VideoConfig> parse_video_processor(std::string_view text, std::string_view path);
Result<SoundConfig> parse_feature_extractor(std::string_view text, std::string_view path);

// "image_processor", "video_processor" and "feature_extractor" inside processor_config.json (transformers 5) win over
// the files of older releases, whose preprocessor_config.json describes pictures and sound in one object.
// `model`: a directory or a GGUF file; beside one, the files of a directory count, and without them its tower.
// kNotFound: there is no description of an image processor.
Result<ProcessorConfig> read_processor_config(const std::string& model);

}  // namespace millrace
