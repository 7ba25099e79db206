// Blocks of quantized weights as GGUF stores them, and the way between them and floats.
//
// All multi-byte fields are little-endian; f16 is IEEE binary16. With q[i] the i-th stored integer of a block:
//   Q8_0  32 elements, 34 bytes: f16 d; int8 q[32].                     x = d * q
//   Q4_0  32 elements, 18 bytes: f16 d; 16 bytes, byte i holds element i in its low and i + 16 in its high half.
//                                                                        x = d * (q - 8), q in 0..15
//   Q4_K  256 elements, 144 bytes: f16 d, f16 dmin; 12 bytes of eight 6-bit scales and eight 6-bit minima; 128 bytes of
//         halves. Sub-block j of 32:                                     x = d * scale[j] * q - dmin * min[j], q in
//         0..15
//   Q5_K  the same with 32 bytes of fifth bits before the halves (176 bytes), q in 0..31
//   Q6_K  256 elements, 210 bytes: 128 bytes of low halves, 64 of the upper two bits, 16 int8 scales, f16 d.
//         Sub-block j of 16:                                             x = d * scale[j] * (q - 32), q in 0..63
// Source: the format's published description and its Python package, which is the oracle of the tests.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace millrace::kernels {

// `count` elements (whole blocks) that begin at `blocks`, as f32: each product rounded once, in the order of the
// formulas above. `type` is quantized (CHECK).
void dequantize_row(DType type, const void* blocks, int64_t count, float* to);

// Quantizes one row of `count` floats (whole blocks) to kQ8_0 or kQ4_0 (CHECK), bit for bit as the format's reference
// does. A NaN or an infinity gives a block that holds NaN, never one that looks sound.
void quantize_row(DType type, const float* from, int64_t count, void* blocks);

// Whether quantize() can; else the error that it would return.
Status check_quantizable(const TensorView& from, DType type);

// Rows [first, first + count) of such a matrix, one behind the other.
void quantize_rows(const TensorView& from, int64_t first, int64_t count, DType type, void* blocks);

// A matrix [rows, columns] of f32, f16 or bf16 as `type`. kInvalidArgument where columns are not whole blocks,
// kUnsupported for another type than kQ8_0 and kQ4_0.
Result<Buffer> quantize(const TensorView& from, DType type, ThreadPool& pool);

}  // namespace millrace::kernels
