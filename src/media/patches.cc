#include "media/patches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "media/resize.h"

namespace millrace {
namespace {

using ValueTables = std::array<std::array<float, 256>, 3>;  // by channel

ValueTables make_tables(const PatchConfig& config) {
  ValueTables tables;
  for (std::size_t c = 0; c < 3; ++c) {
    const auto mean = static_cast<float>(config.mean[c]);
    const auto deviation = static_cast<float>(config.std[c]);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto plain = static_cast<double>(byte);
      const auto value = static_cast<float>(config.rescale ? plain * config.rescale_factor : plain);
      tables[c][byte] = config.normalize ? (value - mean) / deviation : value;
    }
  }
  return tables;
}

void check_config(const PatchConfig& config) {
  CHECK(config.patch_size >= 1 && config.patch_size <= kMaxPatchSize);
  CHECK(config.temporal_patch_size >= 1 && config.temporal_patch_size <= kMaxTemporalPatchSize);
  CHECK(config.merge_size >= 1 && config.merge_size <= kMaxMergeSize);
  CHECK(config.min_pixels >= 1 && config.min_pixels <= config.max_pixels && config.max_pixels <= kMaxResizedPixels);
}

Status check_edges(ImageSize size) {
  if (size.width < 1 || size.height < 1) {
    return invalid_argument("the image is {} x {}; wanted at least 1 x 1", size.width, size.height);
  }
  return ok_status();
}

Result<ImageSize> target_size(ImageSize size, const PatchConfig& config) {
  RETURN_IF_ERROR(check_edges(size));
  if (config.resize) return smart_resize(size, config);
  const int factor = config.patch_size * config.merge_size;
  if (size.width % factor != 0 || size.height % factor != 0) {
    return invalid_argument("the image is {} x {} and do_resize is false; wanted multiples of {}", size.width,
                            size.height, factor);
  }
  if (int64_t{size.width} * size.height > kMaxResizedPixels) {
    return error(StatusCode::kTooLarge, "the image is {} x {}; wanted at most {} pixels", size.width, size.height,
                 kMaxResizedPixels);
  }
  return size;
}

// One patch of one frame, whose first pixel is `pixels`: for each channel its values.
void write_patch(const uint8_t* pixels, std::size_t stride, const ValueTables& tables, const PatchConfig& config,
                 float* out) {
  const auto edge = static_cast<std::size_t>(config.patch_size);
  const std::size_t channel = edge * edge * static_cast<std::size_t>(config.temporal_patch_size);
  for (std::size_t y = 0; y < edge; ++y, pixels += stride) {
    float* const red = out + y * edge;
    float* const green = red + channel;
    float* const blue = green + channel;
    const uint8_t* rgb = pixels;
    for (std::size_t x = 0; x < edge; ++x, rgb += 3) {
      red[x] = tables[0][rgb[0]];
      green[x] = tables[1][rgb[1]];
      blue[x] = tables[2][rgb[2]];
    }
  }
}

// A picture stands still: the first frame of a patch becomes all of them.
void repeat_frame(const PatchConfig& config, float* patch) {
  const auto plane = static_cast<std::size_t>(config.patch_size) * static_cast<std::size_t>(config.patch_size);
  for (std::size_t c = 0; c < 3; ++c) {
    float* const first = patch + c * plane * static_cast<std::size_t>(config.temporal_patch_size);
    for (int frame = 1; frame < config.temporal_patch_size; ++frame) {
      std::memcpy(first + static_cast<std::size_t>(frame) * plane, first, plane * sizeof(float));
    }
  }
}

// `frames`: one, or as many as a patch has.
void write_patches(std::span<const Image* const> frames, const PatchConfig& config, Patches& out) {
  const ValueTables tables = make_tables(config);
  const int merge = config.merge_size;
  float* row = out.values.get();
  for (int block_y = 0; block_y < out.grid.h; block_y += merge) {
    for (int block_x = 0; block_x < out.grid.w; block_x += merge) {
      for (int y = block_y; y < block_y + merge; ++y) {
        for (int x = block_x; x < block_x + merge; ++x, row += out.row_size) {
          float* to = row;
          for (const Image* frame : frames) {
            const uint8_t* pixels = frame->row(y * config.patch_size) + 3 * x * config.patch_size;
            write_patch(pixels, frame->row_bytes(), tables, config, to);
            to += config.patch_size * config.patch_size;
          }
          if (frames.size() == 1) repeat_frame(config, row);
        }
      }
    }
  }
}

int row_size(const PatchConfig& config) {
  return 3 * config.temporal_patch_size * config.patch_size * config.patch_size;
}

Status no_memory(const Patches& patches) {
  return error(StatusCode::kResourceExhausted, "no memory left for {} patches of {} numbers", patches.grid.rows(),
               patches.row_size);
}

}  // namespace

Result<ImageSize> smart_resize(ImageSize size, const PatchConfig& config) {
  check_config(config);
  RETURN_IF_ERROR(check_edges(size));
  const int longer = std::max(size.width, size.height);
  const int shorter = std::min(size.width, size.height);
  if (longer > int64_t{kMaxAspectRatio} * shorter) {
    return invalid_argument("the image is {} x {}, an aspect ratio of {:.1f}; wanted at most {}", size.width,
                            size.height, static_cast<double>(longer) / shorter, kMaxAspectRatio);
  }
  const double factor = config.patch_size * config.merge_size;
  const double w = size.width, h = size.height;
  const double pixels = w * h;  // exact: below 2^53
  const auto min_pixels = static_cast<double>(config.min_pixels);
  const auto max_pixels = static_cast<double>(config.max_pixels);
  // nearbyint rounds halves to even, as Python's round does.
  double out_w = std::nearbyint(w / factor) * factor;
  double out_h = std::nearbyint(h / factor) * factor;
  if (out_w * out_h > max_pixels) {
    const double beta = std::sqrt(pixels / max_pixels);
    out_w = std::max(factor, std::floor(w / beta / factor) * factor);
    out_h = std::max(factor, std::floor(h / beta / factor) * factor);
  } else if (out_w * out_h < min_pixels) {
    const double beta = std::sqrt(min_pixels / pixels);
    out_w = std::ceil(w * beta / factor) * factor;
    out_h = std::ceil(h * beta / factor) * factor;
  }
  if (out_w * out_h > static_cast<double>(kMaxResizedPixels)) {
    return error(StatusCode::kTooLarge, "the image of {} x {} becomes {} x {}; wanted at most {} pixels", size.width,
                 size.height, out_w, out_h, kMaxResizedPixels);
  }
  return ImageSize{static_cast<int>(out_w), static_cast<int>(out_h)};
}

Result<PatchGrid> patch_grid(ImageSize size, const PatchConfig& config) {
  check_config(config);
  ASSIGN_OR_RETURN(const ImageSize target, target_size(size, config));
  return PatchGrid{1, target.height / config.patch_size, target.width / config.patch_size};
}

Result<Patches> make_patches(const Image& image, const PatchConfig& config) {
  Patches out;
  ASSIGN_OR_RETURN(out.grid, patch_grid({image.width(), image.height()}, config));
  out.row_size = row_size(config);
  const int width = out.grid.w * config.patch_size;
  const int height = out.grid.h * config.patch_size;
  try {
    out.values = std::make_unique_for_overwrite<float[]>(out.all().size());
    if (width == image.width() && height == image.height()) {
      write_patches(std::array<const Image*, 1>{&image}, config, out);
    } else {
      const Image resized = resize_bicubic(image, width, height);
      write_patches(std::array<const Image*, 1>{&resized}, config, out);
    }
  } catch (const std::bad_alloc&) {
    return no_memory(out);
  }
  return out;
}

Result<Patches> make_patches(std::span<const Image> frames, const PatchConfig& config) {
  check_config(config);
  CHECK(std::ssize(frames) == config.temporal_patch_size);
  const int edge = config.patch_size * config.merge_size, width = frames[0].width(), height = frames[0].height();
  CHECK(width % edge == 0 && height % edge == 0);
  std::vector<const Image*> pointers;
  for (const Image& frame : frames) {
    CHECK(frame.width() == width && frame.height() == height);
    pointers.push_back(&frame);
  }
  Patches out{.grid = {1, height / config.patch_size, width / config.patch_size}, .row_size = row_size(config)};
  try {
    out.values = std::make_unique_for_overwrite<float[]>(out.all().size());
  } catch (const std::bad_alloc&) {
    return no_memory(out);
  }
  write_patches(pointers, config, out);
  return out;
}

}  // namespace millrace
