#include "media/video_plan.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// numpy.linspace(0, last, count).round(): halves to even, the end exact.
std::vector<int64_t> spread(int64_t last, int64_t count) {
  std::vector<int64_t> out;
  const double step = count > 1 ? static_cast<double>(last) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool end = count > 1 && i == count - 1;
    out.push_back(end ? last : static_cast<int64_t>(std::nearbyint(static_cast<double>(i) * step)));
  }
  return out;
}

}  // namespace

std::vector<int64_t> sample_frames(int64_t frames, double fps, const FrameSampling& sampling) {
  CHECK(frames >= 1 && fps > 0);
  if (!sampling.sample) return spread(frames - 1, frames);
  const double wanted = std::trunc(static_cast<double>(frames) / fps * sampling.fps);
  const double least = std::max(wanted, static_cast<double>(sampling.min_frames));
  const double count = std::min({least, static_cast<double>(sampling.max_frames), static_cast<double>(frames)});
  return spread(frames - 1, static_cast<int64_t>(count));
}

std::vector<double> group_times(std::span<const int64_t> indices, double fps, int group) {
  CHECK(!indices.empty() && group >= 1);
  std::vector<double> out;
  const auto size = static_cast<std::size_t>(group);
  for (std::size_t first = 0; first < indices.size(); first += size) {
    const std::size_t last = std::min(first + size, indices.size()) - 1;
    out.push_back((static_cast<double>(indices[first]) / fps + static_cast<double>(indices[last]) / fps) / 2);
  }
  return out;
}

Result<ImageSize> video_size(int frames, ImageSize size, const PatchConfig& config) {
  const int edge = config.patch_size * config.merge_size;
  if (size.width < edge || size.height < edge) {
    return invalid_argument("the video is {} x {}; wanted at least {} x {}", size.width, size.height, edge, edge);
  }
  const int longer = std::max(size.width, size.height), shorter = std::min(size.width, size.height);
  if (longer > int64_t{kMaxAspectRatio} * shorter) {
    return invalid_argument("the video is {} x {}, an aspect ratio of {:.1f}; wanted at most {}", size.width,
                            size.height, static_cast<double>(longer) / shorter, kMaxAspectRatio);
  }
  if (!config.resize) {
    if (size.width % edge == 0 && size.height % edge == 0) return size;
    return invalid_argument("the video is {} x {} and do_resize is false; wanted multiples of {}", size.width,
                            size.height, edge);
  }
  const double factor = edge, w = size.width, h = size.height, temporal = config.temporal_patch_size;
  const double all = std::ceil(frames / temporal) * temporal;  // with those that fill the last group
  const auto min_pixels = static_cast<double>(config.min_pixels);
  const auto max_pixels = static_cast<double>(config.max_pixels);
  double out_w = std::nearbyint(w / factor) * factor, out_h = std::nearbyint(h / factor) * factor;
  if (all * out_h * out_w > max_pixels) {
    const double beta = std::sqrt(frames * h * w / max_pixels);
    out_w = std::max(factor, std::floor(w / beta / factor) * factor);
    out_h = std::max(factor, std::floor(h / beta / factor) * factor);
  } else if (all * out_h * out_w < min_pixels) {
    const double beta = std::sqrt(min_pixels / (frames * h * w));
    out_w = std::ceil(w * beta / factor) * factor;
    out_h = std::ceil(h * beta / factor) * factor;
  }
  if (out_w * out_h > static_cast<double>(kMaxResizedPixels)) {
    return error(StatusCode::kTooLarge, "the video of {} x {} becomes {} x {}; wanted at most {} pixels", size.width,
                 size.height, out_w, out_h, kMaxResizedPixels);
  }
  return ImageSize{static_cast<int>(out_w), static_cast<int>(out_h)};
}

}  // namespace millrace
