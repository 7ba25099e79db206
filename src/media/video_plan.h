// Which frames of a video a model sees, at what size, and when they were: as Hugging Face transformers 5.12 does
// (Qwen3VLVideoProcessor.sample_frames and smart_resize, Qwen3VLProcessor._calculate_timestamps).
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "media/patches.h"

namespace millrace {

struct FrameSampling {
  bool sample = true;  // false: all frames
  double fps = 2;      // of those that are chosen
  int min_frames = 4;
  int max_frames = 768;

  friend bool operator==(const FrameSampling&, const FrameSampling&) = default;
};

// Ascending indices of [0, frames), spread evenly over the video. `frames` >= 1; `fps` > 0: of the video.
std::vector<int64_t> sample_frames(int64_t frames, double fps, const FrameSampling& sampling);

// The mean time, in seconds, of each `group` frames that become one; the last frame is repeated to fill a group.
std::vector<double> group_times(std::span<const int64_t> indices, double fps, int group);

// The size of all `frames` frames: as smart_resize() of a picture, but min_pixels and max_pixels are of all together.
// kInvalidArgument: an edge below patch_size * merge_size, or an aspect ratio over kMaxAspectRatio. kTooLarge.
Result<ImageSize> video_size(int frames, ImageSize size, const PatchConfig& config);

}  // namespace millrace
