// How a vision model wants its pictures: preprocessor_config.json, processor_config.json and
// video_preprocessor_config.json of a Hugging Face directory (Qwen3-VL, Qwen2-VL), as typed values in checked ranges.
//
// Defaults of absent fields are those of transformers 5.12's Qwen2VLImageProcessor and Qwen3VLVideoProcessor. What
// would change the pixels and is not implemented is refused by name (kUnsupported): another resample than 3 (bicubic),
// a size by other keys than shortest_edge and longest_edge, any do_* that is true and unknown here, do_convert_rgb
// false, another class of processor.
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

struct ProcessorConfig {
  PixelConfig image;
  std::optional<VideoConfig> video;  // nullopt: the directory describes none
};

// From the text of one file; `path` stands in the messages.
Result<PixelConfig> parse_image_processor(std::string_view text, std::string_view path);
Result<VideoConfig> parse_video_processor(std::string_view text, std::string_view path);

// "image_processor" and "video_processor" inside processor_config.json (transformers 5) win over the files of older
// releases. kNotFound: the directory has no description of an image processor.
Result<ProcessorConfig> read_processor_config(const std::string& model_dir);

}  // namespace millrace
