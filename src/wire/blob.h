// Blob: bytes in a message that need not be text. (std::string fields are UTF-8.) Thread safety: a value.
#pragma once

#include <string>

namespace millrace::wire {

struct Blob {
  std::string bytes;
  friend bool operator==(const Blob&, const Blob&) = default;
};

}  // namespace millrace::wire
