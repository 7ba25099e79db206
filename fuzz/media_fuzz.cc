// Any bytes as the other things that src/media reads: a data: URL, what ffprobe prints, frames as ffmpeg writes them,
// packed frames, and the descriptions of processors. The first byte chooses.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "formats/processor_config.h"
#include "media/data_url.h"
#include "media/frame_pack.h"
#include "media/ppm_stream.h"
#include "media/video.h"
#include "media/video_plan.h"

namespace {

using namespace millrace;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_url(std::string_view text) {
  const auto url = read_data_url(text, 4096);
  if (url.ok()) require(is_data_url(text) && url->bytes.size() <= 4096);
}

void read_probe(std::string_view text) {
  const VideoLimits limits;
  const auto info = parse_video_info(text, limits);
  if (!info.ok()) return;
  require(info->frames >= 1 && info->frames <= limits.frames && info->fps > 0);
  require(info->width >= 1 && info->height >= 1 && info->width <= limits.pixels / info->height);
  const auto indices = sample_frames(info->frames, info->fps, {});
  require(!indices.empty() && indices.front() >= 0 && indices.back() < info->frames);
}

// In chunks of a size that the input chooses: their borders change nothing.
void read_frames(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return;
  const std::size_t chunk = 1 + bytes.front() % 64;
  bytes = bytes.subspan(1);
  PpmStream stream(1 << 16);
  while (!bytes.empty()) {
    const std::size_t size = std::min(chunk, bytes.size());
    const Status status = stream.add(bytes.first(size), [](Image image) {
      require(image.width() >= 1 && image.height() >= 1);
      return ok_status();
    });
    if (!status.ok()) return;
    bytes = bytes.subspan(size);
  }
}

void read_pack(std::span<const uint8_t> bytes) {
  const auto frames = unpack_frames(bytes);
  if (!frames.ok()) return;
  require(is_frame_pack(bytes) && !frames->empty());
  const std::string packed = pack_frames(*frames);
  require(packed.size() == bytes.size());
}

void read_processors(std::string_view text) {
  if (const auto image = parse_image_processor(text, "fuzz"); image.ok()) {
    require(image->patch_size >= 1 && image->merge_size >= 1 && image->temporal_patch_size >= 1);
    require(image->min_pixels >= 1 && image->min_pixels <= image->max_pixels);
  }
  if (const auto video = parse_video_processor(text, "fuzz"); video.ok()) {
    require(video->fps > 0 && video->min_frames >= 1 && video->min_frames <= video->max_frames);
  }
  (void)parse_feature_extractor(text, "fuzz").ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  switch (data[0] % 5) {
    case 0:
      read_url(text);
      break;
    case 1:
      read_probe(text);
      break;
    case 2:
      read_frames(bytes);
      break;
    case 3:
      read_pack(bytes);
      break;
    default:
      read_processors(text);
  }
  return 0;
}
