#include "kernels/quantized.h"

#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/quantized_block.h"

namespace millrace::kernels {
namespace {

constexpr int kSmall = 32;  // elements of a block of Q8_0 and Q4_0
constexpr uint16_t kNanF16 = 0x7e00;

float f16_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

void put_f16(uint16_t bits, uint8_t* to) { std::memcpy(to, &bits, 2); }

// Eight 6-bit scales and minima in 12 bytes: the first four of each in the low six bits of bytes 0..3 and 4..7, the
// others in the halves of bytes 8..11 with their upper two bits on top of the first eight bytes.
void unpack_scales(const uint8_t* from, QuantizedBlock& to) {
  for (int j = 0; j < 4; ++j) {
    to.scale[j] = static_cast<int8_t>(from[j] & 63);
    to.min[j] = from[j + 4] & 63;
    to.scale[j + 4] = static_cast<int8_t>((from[j + 8] & 15) | ((from[j] >> 6) << 4));
    to.min[j + 4] = static_cast<uint8_t>((from[j + 8] >> 4) | ((from[j + 4] >> 6) << 4));
  }
}

// Four runs of 32 bytes: the low halves are 32 elements, the high ones the 32 after them.
void unpack_halves(const uint8_t* from, int8_t* to) {
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < 32; ++i) {
      to[run * 64 + i] = static_cast<int8_t>(from[run * 32 + i] & 15);
      to[run * 64 + 32 + i] = static_cast<int8_t>(from[run * 32 + i] >> 4);
    }
  }
}

void unpack_q6(const uint8_t* block, QuantizedBlock& to) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    int8_t* q = to.q + half * 128;
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<int8_t>((low[i] & 15) | ((high[i] & 3) << 4));
      q[i + 32] = static_cast<int8_t>((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4));
      q[i + 64] = static_cast<int8_t>((low[i] >> 4) | (((high[i] >> 4) & 3) << 4));
      q[i + 96] = static_cast<int8_t>((low[i + 32] >> 4) | ((high[i] >> 6) << 4));
    }
  }
  std::memcpy(to.scale, block + 192, 16);
  to.d = f16_at(block + 208);
}

// The largest magnitude of a block as the bits of a float: the order of the bits is that of the values, infinity and
// NaN above all.
uint32_t largest_bits(const float* from) {
  uint32_t most = 0;
  for (int i = 0; i < kSmall; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

bool not_finite(uint32_t bits) { return bits >= 0x7f800000u; }

// 1 / d where it is a number, else 0: the block of a d so small has f16 scale 0 and stands for zeros in any case.
float inverse(float d) {
  const float id = d != 0 ? 1.0f / d : 0.0f;
  return std::isinf(id) ? 0.0f : id;
}

void quantize_q8(const float* from, uint8_t* to) {
  const uint32_t most = largest_bits(from);
  if (not_finite(most)) {
    std::memset(to, 0, 34);
    return put_f16(kNanF16, to);
  }
  const float d = float_of(most) / 127.0f;
  const float id = inverse(d);
  put_f16(f32_to_f16(d), to);
  int8_t* q = reinterpret_cast<int8_t*>(to + 2);
  for (int i = 0; i < kSmall; ++i) {
    // To the nearest, halves away from zero: |v| is at most 127 (and a rounding), so the conversion is exact.
    const float v = from[i] * id;
    const int truncated = static_cast<int>(v);
    const float rest = v - static_cast<float>(truncated);
    q[i] = static_cast<int8_t>(truncated + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0));
  }
}

void quantize_q4(const float* from, uint8_t* to) {
  const uint32_t most = largest_bits(from);
  if (not_finite(most)) {
    std::memset(to, 0, 18);
    return put_f16(kNanF16, to);
  }
  // The first element of the largest magnitude, with its sign, becomes -8.
  float extreme = 0;
  for (int i = kSmall - 1; i >= 0; --i) extreme = std::fabs(from[i]) == float_of(most) ? from[i] : extreme;
  const float d = extreme / -8.0f;
  const float id = inverse(d);
  put_f16(f32_to_f16(d), to);
  int q[kSmall];
  for (int i = 0; i < kSmall; ++i) {
    const int v = static_cast<int>(from[i] * id + 8.5f);
    q[i] = v > 15 ? 15 : v;
  }
  for (int i = 0; i < 16; ++i) to[2 + i] = static_cast<uint8_t>(q[i] | (q[i + 16] << 4));
}

template <typename Float>
void widen_row(const char* from, int64_t count, float* to, Float convert) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = convert(bits);
  }
}

// `count` elements from `first` on as floats: into `scratch`, or where they lie if they are floats at a fit address.
const float* floats_of(const TensorView& view, int64_t first, int64_t count, float* scratch) {
  const char* from = static_cast<const char*>(view.data) + first * static_cast<int64_t>(dtype_size(view.dtype));
  if (view.dtype == DType::kF32) {
    if (reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0) return reinterpret_cast<const float*>(from);
    std::memcpy(scratch, from, static_cast<std::size_t>(count) * 4);
  } else if (view.dtype == DType::kBF16) {
    widen_row(from, count, scratch, [](uint16_t bits) { return bf16_to_f32(bits); });
  } else {
    widen_row(from, count, scratch, [](uint16_t bits) { return f16_to_f32(bits); });
  }
  return scratch;
}

}  // namespace

void unpack_block(DType type, const void* block, QuantizedBlock& to) {
  const uint8_t* p = static_cast<const uint8_t*>(block);
  switch (type) {
    case DType::kQ8_0:
      to.d = f16_at(p);
      std::memcpy(to.q, p + 2, 32);
      return;
    case DType::kQ4_0:
      to.d = f16_at(p);
      for (int i = 0; i < 16; ++i) {
        to.q[i] = static_cast<int8_t>(p[2 + i] & 15);
        to.q[i + 16] = static_cast<int8_t>(p[2 + i] >> 4);
      }
      return;
    case DType::kQ4_K:
    case DType::kQ5_K:
      to.d = f16_at(p);
      to.dmin = f16_at(p + 2);
      unpack_scales(p + 4, to);
      unpack_halves(p + (type == DType::kQ4_K ? 16 : 48), to.q);
      if (type == DType::kQ4_K) return;
      for (int i = 0; i < 256; ++i) to.q[i] |= static_cast<int8_t>(((p[16 + i % 32] >> (i / 32)) & 1) << 4);
      return;
    case DType::kQ6_K:
      return unpack_q6(p, to);
    default:
      CHECK(false);
  }
}

void block_values(DType type, const QuantizedBlock& block, float* to) {
  if (type == DType::kQ8_0 || type == DType::kQ4_0) {
    const int zero = type == DType::kQ4_0 ? 8 : 0;
    for (int i = 0; i < kSmall; ++i) to[i] = block.d * static_cast<float>(block.q[i] - zero);
    return;
  }
  if (type == DType::kQ6_K) {
    for (int i = 0; i < 256; ++i) {
      to[i] = block.d * static_cast<float>(block.scale[i / 16]) * static_cast<float>(block.q[i] - 32);
    }
    return;
  }
  for (int i = 0; i < 256; ++i) {
    to[i] = block.d * static_cast<float>(block.scale[i / 32]) * static_cast<float>(block.q[i]) -
            block.dmin * static_cast<float>(block.min[i / 32]);
  }
}

void dequantize_row(DType type, const void* blocks, int64_t count, float* to) {
  const BlockSize size = dtype_block(type);
  CHECK(size.elements > 0 && count % size.elements == 0);
  const char* from = static_cast<const char*>(blocks);
  QuantizedBlock block;
  for (int64_t i = 0; i < count; i += size.elements, from += size.bytes) {
    unpack_block(type, from, block);
    block_values(type, block, to + i);
  }
}

void quantize_row(DType type, const float* from, int64_t count, void* blocks) {
  CHECK(type == DType::kQ8_0 || type == DType::kQ4_0);
  CHECK(count % kSmall == 0);
  uint8_t* to = static_cast<uint8_t*>(blocks);
  const std::size_t bytes = dtype_block(type).bytes;
  for (int64_t i = 0; i < count; i += kSmall, to += bytes) {
    type == DType::kQ8_0 ? quantize_q8(from + i, to) : quantize_q4(from + i, to);
  }
}

Status check_quantizable(const TensorView& from, DType type) {
  if (type != DType::kQ8_0 && type != DType::kQ4_0) {
    return error(StatusCode::kUnsupported, "quantizing to {}; wanted Q8_0 or Q4_0", dtype_name(type));
  }
  if (!is_weight_dtype(from.dtype)) {
    return error(StatusCode::kUnsupported, "quantizing {}; wanted F32, F16 or BF16", dtype_name(from.dtype));
  }
  CHECK(from.device == Device::kHost && from.shape.rank() == 2);
  if (from.shape[1] % kSmall == 0) return ok_status();
  return invalid_argument("quantizing rows of {} elements; wanted a multiple of {}", from.shape[1], kSmall);
}

void quantize_rows(const TensorView& from, int64_t first, int64_t count, DType type, void* blocks) {
  // Short runs, so that the floats stay in the first level cache between widening and quantizing.
  constexpr int64_t kRun = 1024;
  float scratch[kRun];
  const int64_t columns = from.shape[1];
  auto* to = static_cast<std::byte*>(blocks);
  for (int64_t row = first; row < first + count; ++row, to += storage_bytes(type, columns)) {
    for (int64_t i = 0; i < columns; i += kRun) {
      const int64_t some = columns - i < kRun ? columns - i : kRun;
      quantize_row(type, floats_of(from, row * columns + i, some, scratch), some, to + storage_bytes(type, i));
    }
  }
}

Result<Buffer> quantize(const TensorView& from, DType type, ThreadPool& pool) {
  RETURN_IF_ERROR(check_quantizable(from, type));
  const std::size_t row_bytes = storage_bytes(type, from.shape[1]);
  Buffer blocks(static_cast<std::size_t>(from.shape[0]) * row_bytes);
  pool.parallel_for(from.shape[0], 16, [&](int64_t begin, int64_t end, int) {
    quantize_rows(from, begin, end - begin, type, blocks.data() + static_cast<std::size_t>(begin) * row_bytes);
  });
  return blocks;
}

}  // namespace millrace::kernels
