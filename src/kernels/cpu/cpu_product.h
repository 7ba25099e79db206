// CpuProduct: a Product (ops.h) as the linear kernels of the CPU take it. Several go together when x is prepared alike
// for all of them: then their panels are one loop for the thread pool. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"
#include "kernels/weight.h"

namespace millrace::kernels {

inline constexpr std::size_t kMaxProducts = 8;  // in one loop; more take turns

struct CpuProduct {
  const Weight* weight = nullptr;
  Rows y;
  const float* bias = nullptr;  // [y.width] or null
  bool accumulate = false;
};

}  // namespace millrace::kernels
