// An Ops that counts: how often each operation ran, for how long, how many bytes it had to read and how many operations
// it had to do. What `millrace bench offline` compares with the machine's limits.
//
// Bytes are those that cannot be avoided: each weight once a call, each key and value once a call and sequence.
// Activations are not counted; they stay in the caches. Operations count a multiply and an add as two.
//
// Owner: a runner; the figures belong to the caller and outlive it. Thread safety: that of Ops; read the figures while
// no step runs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/ops.h"

namespace millrace {

enum class OpKind : uint8_t {
  kLinear,
  kEmbedding,
  kRmsNorm,
  kAdd,
  kAddScaled,
  kSnake,
  kDepthwise,
  kSwiglu,
  kLayerNorm,
  kGelu,
  kRopeTable,
  kRope,
  kKvStore,
  kAttention,
};
inline constexpr std::size_t kOpKinds = 14;
std::string_view op_name(OpKind kind);

struct OpMeter {
  int64_t calls = 0;
  int64_t ns = 0;
  double bytes = 0;
  double operations = 0;
};
using OpMeters = std::array<OpMeter, kOpKinds>;

// `meters` must outlive the result.
std::unique_ptr<kernels::Ops> meter_ops(std::unique_ptr<kernels::Ops> ops, OpMeters& meters);

}  // namespace millrace
