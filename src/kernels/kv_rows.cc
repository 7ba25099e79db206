#include "kernels/kv_rows.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstring>
#include <limits>

#include "kernels/half.h"

namespace millrace::kernels {
namespace {

int64_t values_offset(const KvLayer& kv, const KvAddress& address) {
  return address.page * kv.page_stride_bytes + address.head * kv.head_bytes() + address.slot * kv.row_bytes();
}

int64_t scale_offset(const KvLayer& kv, const KvAddress& address) {
  return address.page * kv.page_stride_bytes + address.head * kv.head_bytes() + kv.page_size * kv.row_bytes() +
         address.slot * kv.scale_bytes();
}

// What the int8 row is scaled by: NaN where an element is NaN or infinite, 0 where the quotient leaves the normal range
// (its rounding would no longer be relative to it, and x / scale could leave [-127, 127]).
float int8_scale(const float* from, int64_t count) {
  uint32_t maximum = 0;  // magnitudes order as their bits do, infinity and NaN last
  for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, std::bit_cast<uint32_t>(from[i]) & 0x7fffffffu);
  if (maximum >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  const float scale = std::bit_cast<float>(maximum) / 127.0f;
  return scale < FLT_MIN ? 0.0f : scale;
}

void store_int8(const KvLayer& kv, char* base, const KvAddress& address, const float* from) {
  const float scale = int8_scale(from, kv.head_dim);
  std::memcpy(base + scale_offset(kv, address), &scale, sizeof scale);
  char* to = base + values_offset(kv, address);
  if (!(scale > 0)) {
    std::memset(to, 0, static_cast<std::size_t>(kv.head_dim));
    return;
  }
  // Added to 1.5 * 2^23, a quotient loses its fraction, ties to even, and stands in the low bits of the sum.
  for (int64_t i = 0; i < kv.head_dim; ++i) {
    to[i] = static_cast<char>(std::bit_cast<uint32_t>(from[i] / scale + 12582912.0f));
  }
}

template <typename Narrow>
void store_words(const float* from, int64_t count, char* to, Narrow narrow) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t word = narrow(from[i]);
    std::memcpy(to + 2 * i, &word, sizeof word);
  }
}

}  // namespace

void store_kv_row(const KvLayer& kv, void* base, const KvAddress& address, const float* from) {
  char* bytes = static_cast<char*>(base);
  char* to = bytes + values_offset(kv, address);
  switch (kv.dtype) {
    case DType::kF16:
      return store_words(from, kv.head_dim, to, f32_to_f16);
    case DType::kBF16:
      return store_words(from, kv.head_dim, to, f32_to_bf16);
    case DType::kI8:
      return store_int8(kv, bytes, address, from);
    default:  // kF32: check_kv_store lets no other pass
      std::memcpy(to, from, static_cast<std::size_t>(kv.row_bytes()));
  }
}

void read_kv_row(const KvLayer& kv, const void* base, const KvAddress& address, double* to) {
  const char* bytes = static_cast<const char*>(base);
  const char* from = bytes + values_offset(kv, address);
  if (kv.dtype == DType::kI8) {
    float scale;
    std::memcpy(&scale, bytes + scale_offset(kv, address), sizeof scale);
    for (int64_t i = 0; i < kv.head_dim; ++i) to[i] = double{static_cast<float>(static_cast<int8_t>(from[i]))} * scale;
    return;
  }
  for (int64_t i = 0; i < kv.head_dim; ++i) to[i] = double{load_weight(from, kv.dtype, i)};
}

}  // namespace millrace::kernels
