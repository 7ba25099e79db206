// Decoded frames of a video in one string of bytes, as they go to the process that encodes them: a head, then 8-bit
// RGB. Not a format of files: what clients send never is one, since no reader of pictures knows it.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "media/image.h"

namespace millrace {

inline constexpr std::size_t kPackHeadBytes = 20;

// All of one size; at least one.
std::string pack_frames(std::span<const Image> frames);

bool is_frame_pack(std::span<const uint8_t> bytes);
// kInvalidArgument: not what pack_frames() makes.
Result<std::vector<Image>> unpack_frames(std::span<const uint8_t> bytes);

}  // namespace millrace
