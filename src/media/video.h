// Videos from bytes to frames, by the programs ffprobe and ffmpeg in processes of their own (media/child_program.h).
// They get a list of containers and codecs, so that no file is a playlist that reads others, and no network.
//
// The pixels are those of ffmpeg: turned as the file has it, RGB by its scaler.
//
// Thread safety: free functions; they block their thread until the program has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "media/child_program.h"
#include "media/image.h"

namespace millrace {

inline constexpr int64_t kMaxVideoFrames = 100'000;            // of a file
inline constexpr int64_t kMaxVideoPixels = int64_t{16} << 20;  // of a frame

struct VideoInfo {
  int64_t frames = 0;  // as they are decoded
  double fps = 0;
  int64_t width = 0;  // as stored
  int64_t height = 0;
};

// From what ffprobe prints. kInvalidArgument: no video stream, or a value out of range.
Result<VideoInfo> parse_video_info(std::string_view json);

// Decodes all of it once, to count the frames. kUnsupported: no ffprobe; kInvalidArgument: no video that is read.
Result<VideoInfo> probe_video(std::span<const uint8_t> bytes, const ChildLimits& limits);

// Gives the frames of ascending `indices` to `on_frame`, one after the other. The errors of probe_video(); one of
// on_frame() ends it.
Status decode_frames(std::span<const uint8_t> bytes, std::span<const int64_t> indices, const ChildLimits& limits,
                     const std::function<Status(Image)>& on_frame);

}  // namespace millrace
