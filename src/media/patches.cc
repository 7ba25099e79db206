#include "media/patches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

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

// One patch whose first pixel is `pixels`: for each channel its values, once for each of the equal frames.
void write_patch(const uint8_t* pixels, std::size_t stride, const ValueTables& tables, const PatchConfig& config,
                 float* out) {
  const auto edge = static_cast<std::size_t>(config.patch_size);
  const std::size_t plane = edge * edge;
  const std::size_t channel = plane * static_cast<std::size_t>(config.temporal_patch_size);
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
  for (std::size_t c = 0; c < 3; ++c) {
    float* const first = out + c * channel;
    for (int frame = 1; frame < config.temporal_patch_size; ++frame) {
      std::memcpy(first + static_cast<std::size_t>(frame) * plane, first, plane * sizeof(float));
    }
  }
}

void write_patches(const Image& image, const PatchConfig& config, Patches& out) {
  const ValueTables tables = make_tables(config);
  const int merge = config.merge_size;
  float* row = out.values.get();
  for (int block_y = 0; block_y < out.grid.h; block_y += merge) {
    for (int block_x = 0; block_x < out.grid.w; block_x += merge) {
      for (int y = block_y; y < block_y + merge; ++y) {
        for (int x = block_x; x < block_x + merge; ++x, row += out.row_size) {
          const uint8_t* pixels = image.row(y * config.patch_size) + 3 * x * config.patch_size;
          write_patch(pixels, image.row_bytes(), tables, config, row);
        }
      }
    }
  }
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
  out.row_size = 3 * config.temporal_patch_size * config.patch_size * config.patch_size;
  const int width = out.grid.w * config.patch_size;
  const int height = out.grid.h * config.patch_size;
  try {
    out.values = std::make_unique_for_overwrite<float[]>(out.all().size());
    if (width == image.width() && height == image.height()) {
      write_patches(image, config, out);
    } else {
      write_patches(resize_bicubic(image, width, height), config, out);
    }
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "no memory left for {} patches of {} numbers", out.grid.rows(),
                 out.row_size);
  }
  return out;
}

}  // namespace millrace
