// A decoded image as the rows of numbers that a vision transformer takes: resize to multiples of a factor, scale and
// normalize, cut into patches. Equal in every bit to Hugging Face transformers 5.12's Qwen2VLImageProcessorPil.
//
// A value is computed as there: v = f32(f64(byte) * f64 rescale_factor), then (v - f32 mean) / f32 std in f32. A byte
// has 256 values, so a table of each channel holds the results.
//
// Thread safety: values; free functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "media/image.h"

namespace millrace {

inline constexpr int kMaxPatchSize = 256;
inline constexpr int kMaxTemporalPatchSize = 16;
inline constexpr int kMaxMergeSize = 16;
inline constexpr int64_t kMaxResizedPixels = 64ll << 20;
inline constexpr int kMaxAspectRatio = 200;

struct PatchConfig {
  int patch_size = 16;          // 1 to kMaxPatchSize
  int temporal_patch_size = 2;  // 1 to kMaxTemporalPatchSize
  int merge_size = 2;           // 1 to kMaxMergeSize
  int64_t min_pixels = 256 * 256;
  int64_t max_pixels = 4096 * 4096;
  bool resize = true;
  bool rescale = true;
  bool normalize = true;
  double rescale_factor = 1 / 255.0;
  std::array<double, 3> mean = {0.5, 0.5, 0.5};
  std::array<double, 3> std = {0.5, 0.5, 0.5};

  friend bool operator==(const PatchConfig&, const PatchConfig&) = default;
};

struct ImageSize {
  int width = 0;
  int height = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// In patches: frames / temporal_patch_size, height / patch_size, width / patch_size.
struct PatchGrid {
  int t = 0;
  int h = 0;
  int w = 0;

  int64_t rows() const { return int64_t{t} * h * w; }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};

struct Patches {
  PatchGrid grid;
  int row_size = 0;  // 3 * temporal_patch_size * patch_size^2
  std::unique_ptr<float[]> values;

  std::span<const float> row(int64_t i) const {
    return {values.get() + i * row_size, static_cast<std::size_t>(row_size)};
  }
  std::span<const float> all() const {
    return {values.get(), static_cast<std::size_t>(grid.rows()) * static_cast<std::size_t>(row_size)};
  }
};

// Multiples of patch_size * merge_size near `size`, with about its aspect ratio and min_pixels to max_pixels pixels
// (transformers' smart_resize; halves round to even). kInvalidArgument: aspect ratio over kMaxAspectRatio, or an edge
// below 1. kTooLarge: the result has over kMaxResizedPixels.
Result<ImageSize> smart_resize(ImageSize size, const PatchConfig& config);

// What make_patches will give for an image of this size, without the image. Its errors.
Result<PatchGrid> patch_grid(ImageSize size, const PatchConfig& config);

// f32 rows [grid.rows(), channels * temporal * patch * patch]. Rows are in merge blocks: block by block, in each the
// merge_size^2 patches row by row. The image is repeated temporal_patch_size times, so grid.t is 1. The errors of
// patch_grid; kResourceExhausted: no memory.
Result<Patches> make_patches(const Image& image, const PatchConfig& config);

// The same of frames of a video that follow each other: temporal_patch_size of them, all of one size, whose edges are
// multiples of patch_size * merge_size (CHECK); nothing is resized. kResourceExhausted.
Result<Patches> make_patches(std::span<const Image> frames, const PatchConfig& config);

}  // namespace millrace
