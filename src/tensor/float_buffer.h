// Space for `rows` rows of `width` floats, not zeroed. Thread safety: free function.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace millrace {

inline Buffer float_buffer(int64_t rows, int64_t width) {
  return Buffer(static_cast<std::size_t>(rows * width) * sizeof(float));
}

}  // namespace millrace
