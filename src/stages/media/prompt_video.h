// From a file with a video to the items of a prompt: frames are chosen, decoded, brought to one size and put into
// groups, as Hugging Face transformers 5.12 does for Qwen3-VL.
//
// Thread safety: a free function; it blocks its thread for the time of decoding.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "media/video.h"
#include "stages/media/media_rows.h"

namespace millrace {

// Without `begin` and `field`. kUnsupported: ffmpeg is not installed; kInvalidArgument: no video that is served, or one
// of over wire::kMaxPromptMedia groups; kTooLarge: the frames have over wire::kMaxPromptMediaBytes; kCancelled.
Result<std::vector<PromptItem>> read_video(const std::string& bytes, const VideoFacts& facts, const VideoLimits& limits,
                                           const Cancelled& cancelled);

}  // namespace millrace
