// Pictures from bytes to 8-bit RGB: JPEG, PNG, WebP and the first frame of GIF, APNG and animated WebP.
//
// The pixels are those of Pillow 13: Image.open, ImageOps.exif_transpose, convert("RGB"). That is: JPEG with the
// accurate integer DCT and smooth chroma upsampling, CMYK by Adobe's inverted convention; alpha and transparent colours
// are dropped, not blended; 16-bit channels keep their high byte, except that of grey PNG, where values over 255 become
// 255; colour profiles and gamma are ignored. Orientation comes from EXIF, else from XMP (PNG: uncompressed iTXt only).
//
// Every size is checked from the header before memory for pixels is allocated. Truncated and corrupt files are errors,
// as in Pillow; stricter than Pillow is the checksum of PNG's image data.
//
// Thread safety: values; free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"

namespace millrace {

enum class ImageFormat : uint8_t { kJpeg, kPng, kWebp, kGif };
std::string_view image_format_name(ImageFormat format);  // "JPEG", "PNG", "WebP", "GIF"

struct ImageLimits {
  std::size_t encoded_bytes = 64u << 20;
  int64_t pixels = 64ll << 20;  // width * height as stored
  int edge = 65500;             // width, and height; libjpeg's limit
};

// Of a progressive JPEG: each scan visits all pixels, so a small file with many of them would take minutes.
inline constexpr int kMaxJpegScans = 200;

struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  int width = 0;  // as stored: orientations 5 to 8 exchange width and height of the decoded image
  int height = 0;
  int orientation = 1;    // 1 to 8, as EXIF counts
  bool animated = false;  // more than one frame
};

// 8-bit RGB, rows from top to bottom without padding. The pixels are not initialised by the constructor.
class Image {
 public:
  Image() = default;
  Image(int width, int height);  // both >= 1

  int width() const { return width_; }
  int height() const { return height_; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * 3; }
  std::size_t size_bytes() const { return row_bytes() * static_cast<std::size_t>(height_); }
  uint8_t* row(int y) { return rgb_.get() + row_bytes() * static_cast<std::size_t>(y); }
  const uint8_t* row(int y) const { return rgb_.get() + row_bytes() * static_cast<std::size_t>(y); }
  std::span<const uint8_t> bytes() const { return {rgb_.get(), size_bytes()}; }

 private:
  int width_ = 0;
  int height_ = 0;
  std::unique_ptr<uint8_t[]> rgb_;
};

// What the header states; the format is found by content. Allocates nothing of the picture's size.
// kInvalidArgument: no known format, or a broken header. kUnsupported: a kind of file that is not decoded.
Result<ImageInfo> read_image_header(std::span<const uint8_t> encoded);

// kTooLarge: over a limit, with both values. kInvalidArgument: corrupt or truncated. kResourceExhausted: no memory.
Result<Image> decode_image(std::span<const uint8_t> encoded, const ImageLimits& limits = {});

}  // namespace millrace
