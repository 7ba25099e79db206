#include "media/image.h"

#include <array>
#include <cstring>
#include <new>

#include "media/codecs.h"
#include "media/orientation.h"

namespace millrace {
namespace {

using codecs::Bytes;

struct Codec {
  ImageFormat format;
  Result<ImageInfo> (*read_header)(Bytes bytes);
  Result<Image> (*decode)(Bytes bytes, const ImageInfo& info);
};

constexpr std::array<Codec, 4> kCodecs = {{
    {ImageFormat::kJpeg, codecs::read_jpeg_header, codecs::decode_jpeg},
    {ImageFormat::kPng, codecs::read_png_header, codecs::decode_png},
    {ImageFormat::kWebp, codecs::read_webp_header, codecs::decode_webp},
    {ImageFormat::kGif, codecs::read_gif_header, codecs::decode_gif},
}};

bool has(Bytes bytes, std::size_t offset, std::string_view text) {
  return bytes.size() >= offset + text.size() && std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

Result<ImageFormat> find_format(Bytes bytes) {
  if (has(bytes, 0, "\xFF\xD8\xFF")) return ImageFormat::kJpeg;
  if (has(bytes, 0, "\x89PNG\r\n\x1A\n")) return ImageFormat::kPng;
  if (has(bytes, 0, "RIFF") && has(bytes, 8, "WEBP")) return ImageFormat::kWebp;
  if (has(bytes, 0, "GIF87a") || has(bytes, 0, "GIF89a")) return ImageFormat::kGif;
  std::string seen;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) seen += fmt::format(" {:02x}", bytes[i]);
  if (seen.empty()) return invalid_argument("the image has 0 bytes; wanted a JPEG, PNG, WebP or GIF file");
  return invalid_argument("the image begins with the bytes{}; wanted a JPEG, PNG, WebP or GIF file", seen);
}

Status check_limits(const ImageInfo& info, const ImageLimits& limits) {
  const int64_t pixels = int64_t{info.width} * info.height;
  if (info.width > limits.edge || info.height > limits.edge) {
    return error(StatusCode::kTooLarge, "the image is {} x {}; wanted at most {} on each edge", info.width, info.height,
                 limits.edge);
  }
  if (pixels > limits.pixels) {
    return error(StatusCode::kTooLarge, "the image is {} x {}, {} pixels; wanted at most {} pixels", info.width,
                 info.height, pixels, limits.pixels);
  }
  return ok_status();
}

Result<ImageInfo> read_checked_header(const Codec& codec, Bytes encoded) {
  auto info = codec.read_header(encoded);
  if (!info.ok()) return info.status().with_prefix(image_format_name(codec.format));
  if (info->width < 1 || info->height < 1) {
    return invalid_argument("{}: the image is {} x {}; wanted at least 1 x 1", image_format_name(codec.format),
                            info->width, info->height);
  }
  info->format = codec.format;
  return info;
}

}  // namespace

std::string_view image_format_name(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return "JPEG";
    case ImageFormat::kPng:
      return "PNG";
    case ImageFormat::kWebp:
      return "WebP";
    case ImageFormat::kGif:
      return "GIF";
  }
  return "unknown";
}

Image::Image(int width, int height) : width_(width), height_(height) {
  CHECK(width >= 1 && height >= 1);
  rgb_ = std::make_unique_for_overwrite<uint8_t[]>(size_bytes());
}

Result<ImageInfo> read_image_header(std::span<const uint8_t> encoded) {
  ASSIGN_OR_RETURN(const ImageFormat format, find_format(encoded));
  return read_checked_header(kCodecs[static_cast<std::size_t>(format)], encoded);
}

Result<Image> decode_image(std::span<const uint8_t> encoded, const ImageLimits& limits) {
  if (encoded.size() > limits.encoded_bytes) {
    return error(StatusCode::kTooLarge, "the image has {} bytes; wanted at most {}", encoded.size(),
                 limits.encoded_bytes);
  }
  try {
    ASSIGN_OR_RETURN(const ImageFormat format, find_format(encoded));
    const Codec& codec = kCodecs[static_cast<std::size_t>(format)];
    ASSIGN_OR_RETURN(const ImageInfo info, read_checked_header(codec, encoded));
    RETURN_IF_ERROR(check_limits(info, limits));
    auto image = codec.decode(encoded, info);
    if (!image.ok()) return image.status().with_prefix(image_format_name(format));
    return apply_orientation(std::move(image).value(), info.orientation);
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "no memory left to decode the image of {} bytes", encoded.size());
  }
}

}  // namespace millrace
