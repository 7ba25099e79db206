// f16 (IEEE 754 binary16) and bf16 (the upper half of binary32) as raw 16-bit words. Widening is exact; narrowing
// rounds to nearest, ties to even, overflows to infinity and keeps NaN a (quiet) NaN. Thread safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace millrace::kernels {

constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = (uint32_t{bits} & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {  // infinity or NaN; a signalling NaN becomes quiet, as the hardware conversion does
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal. Adding 0.5 lets the FPU round at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

constexpr bool is_weight_dtype(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

// Element `index` of a weight array at any byte address.
inline float load_weight(const void* data, DType type, int64_t index) {
  if (type == DType::kF32) {
    float value = 0;
    std::memcpy(&value, static_cast<const char*>(data) + index * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + index * 2, 2);
  return type == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// All elements of a tensor of a weight dtype.
inline std::vector<float> widened_values(const TensorView& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.shape.elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = load_weight(tensor.data, tensor.dtype, static_cast<int64_t>(i));
  }
  return out;
}

}  // namespace millrace::kernels
