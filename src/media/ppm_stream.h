// PpmStream: pictures in the format PPM (P6, 8 bits), one behind the other, as they come from a pipe.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "media/image.h"

namespace millrace {

class PpmStream {
 public:
  explicit PpmStream(int64_t max_pixels) : max_pixels_(max_pixels) {}

  // Gives each picture that `data` completes to `on_image`, whose errors are returned. kInvalidArgument: no PPM, or one
  // of over max_pixels.
  Status add(std::span<const uint8_t> data, const std::function<Status(Image)>& on_image);

 private:
  Status begin_image();

  const int64_t max_pixels_;
  std::string head_;            // of the next picture, as far as it came
  std::optional<Image> image_;  // under way
  std::size_t filled_ = 0;      // bytes of it
};

}  // namespace millrace
