// Any bytes as a picture: refused with a reason, or the pixels whose number the header stated, which make patches.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "media/image.h"
#include "media/patches.h"
#include "media/resize.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::span<const uint8_t> bytes(data, size);
  const auto info = read_image_header(bytes);
  const auto image = decode_image(bytes, {.encoded_bytes = 1u << 20, .pixels = 1 << 18});
  require(info.ok() || !info.status().message().empty());
  require(image.ok() || !image.status().message().empty());
  if (!image.ok()) return 0;
  require(info.ok());
  const bool turned = info->orientation >= 5;
  require(image->width() == (turned ? info->height : info->width));
  require(image->height() == (turned ? info->width : info->height));
  const PatchConfig config{.min_pixels = 32 * 32, .max_pixels = 96 * 96};
  const auto grid = patch_grid({image->width(), image->height()}, config);
  if (!grid.ok()) return 0;
  PatchConfig as_it_is = config;
  as_it_is.resize = false;
  const auto patches =
      make_patches(resize_bicubic(*image, grid->w * config.patch_size, grid->h * config.patch_size), as_it_is);
  require(patches.ok() && patches->grid == *grid);
  return 0;
}
