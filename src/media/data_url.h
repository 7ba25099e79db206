// data: URLs with base64 (RFC 2397, RFC 4648), as clients send pictures: data:image/png;base64,iVBORw0...
//
// The media type is passed on and proves nothing: what a picture is, its bytes decide (image.h).
// Base64 is strict: the standard alphabet, padding to a multiple of four, unused bits 0, no line breaks, no %XX.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

struct DataUrl {
  std::string_view media_type;  // "image/png" inside the URL's text, with its parameters; may be empty
  std::vector<uint8_t> bytes;
};

bool is_data_url(std::string_view url);

// kTooLarge: over max_bytes decoded, before memory is allocated. kInvalidArgument: malformed. kUnsupported: not base64.
// An error states an offset and never echoes the data.
Result<DataUrl> read_data_url(std::string_view url, std::size_t max_bytes);

Result<std::vector<uint8_t>> decode_base64(std::string_view text, std::size_t max_bytes);

}  // namespace millrace
