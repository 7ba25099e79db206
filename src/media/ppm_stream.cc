#include "media/ppm_stream.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace millrace {
namespace {

constexpr std::size_t kMaxHeadBytes = 64;

}  // namespace

// "P6\n64 48\n255\n", as ffmpeg writes it: without comments.
Status PpmStream::begin_image() {
  int width = 0, height = 0, most = 0, read = 0;
  const int fields = std::sscanf(head_.c_str(), "P6 %d %d %d%n", &width, &height, &most, &read);
  const bool fits = fields == 3 && most == 255 && width >= 1 && height >= 1 && int64_t{width} * height <= max_pixels_;
  if (!fits) return invalid_argument("a frame begins with '{}'; wanted P6 of at most {} pixels", head_, max_pixels_);
  head_.clear();
  image_.emplace(width, height);
  filled_ = 0;
  return ok_status();
}

Status PpmStream::add(std::span<const uint8_t> data, const std::function<Status(Image)>& on_image) {
  while (!data.empty()) {
    if (!image_) {
      const auto c = static_cast<char>(data.front());
      data = data.subspan(1);
      head_ += c;
      // Its third line break ends the head.
      if (c == '\n' && std::ranges::count(head_, '\n') == 3) RETURN_IF_ERROR(begin_image());
      if (head_.size() > kMaxHeadBytes) return invalid_argument("a frame has no head of PPM");
      continue;
    }
    const std::size_t count = std::min(data.size(), image_->size_bytes() - filled_);
    std::memcpy(image_->row(0) + filled_, data.data(), count);
    filled_ += count;
    data = data.subspan(count);
    if (filled_ < image_->size_bytes()) continue;
    Image complete = *std::exchange(image_, std::nullopt);
    RETURN_IF_ERROR(on_image(std::move(complete)));
  }
  return ok_status();
}

}  // namespace millrace
