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

// What an operator may set; each error names the option.
struct VideoLimits {
  int64_t frames = 100'000;            // of a file: --video-max-frames
  int64_t pixels = int64_t{16} << 20;  // of a frame: --video-max-pixels
  int seconds = 3600;                  // of its playing: --video-max-seconds
  int mib = 32;                        // of a file: --video-max-mib
  int decode_seconds = 60;             // of each program, of a core and by the clock: --video-decode-seconds
};

using Cancelled = std::function<bool()>;

struct VideoInfo {
  int64_t frames = 0;  // as they are decoded
  double fps = 0;
  int64_t width = 0;  // as stored
  int64_t height = 0;
};

// From what ffprobe prints. kInvalidArgument: no video stream, or a value over its limit.
Result<VideoInfo> parse_video_info(std::string_view json, const VideoLimits& limits);

// Decodes all of it once, to count the frames. kUnsupported: no ffprobe; kInvalidArgument: no video that is read;
// kTooLarge: too many bytes; kCancelled: `cancelled`, which is asked ten times a second, returned true.
Result<VideoInfo> probe_video(std::span<const uint8_t> bytes, const VideoLimits& limits, const Cancelled& cancelled);

// Gives the frames of ascending `indices` to `on_frame`, one after the other. The errors of probe_video(); one of
// on_frame() ends it.
Status decode_frames(std::span<const uint8_t> bytes, std::span<const int64_t> indices, const VideoLimits& limits,
                     const Cancelled& cancelled, const std::function<Status(Image)>& on_frame);

}  // namespace millrace
