// The decoders behind image.h, one pair of functions a format. For this folder alone.
//
// read_*_header takes bytes that begin with the format's signature. decode_* is given what read_*_header returned for
// the same bytes, after the limits were checked; the orientation is not applied yet.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "media/image.h"

namespace millrace::codecs {

using Bytes = std::span<const uint8_t>;

Result<ImageInfo> read_jpeg_header(Bytes bytes);
Result<Image> decode_jpeg(Bytes bytes, const ImageInfo& info);

Result<ImageInfo> read_png_header(Bytes bytes);
Result<Image> decode_png(Bytes bytes, const ImageInfo& info);

Result<ImageInfo> read_webp_header(Bytes bytes);
Result<Image> decode_webp(Bytes bytes, const ImageInfo& info);

Result<ImageInfo> read_gif_header(Bytes bytes);
Result<Image> decode_gif(Bytes bytes, const ImageInfo& info);

}  // namespace millrace::codecs
