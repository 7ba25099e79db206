// One block of quantized weights taken apart: its integers, one to a byte, and its scales. What the fields mean stands
// in quantized.h; between the bytes of a file, the packed panels of kernels/cpu and floats everything goes through it.
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace millrace::kernels {

struct QuantizedBlock {
  float d = 0;
  float dmin = 0;    // Q4_K, Q5_K
  int8_t scale[16];  // Q4_K, Q5_K: 8 of 0..63; Q6_K: 16
  uint8_t min[8];    // Q4_K, Q5_K: 0..63
  int8_t q[256];     // as stored: Q4_0 0..15, Q5_K 0..31, Q6_K 0..63, without the 8 and the 32 that the formulas take
};

// Any 34, 18, 144, 176 or 210 bytes are a block; no alignment is asked for.
void unpack_block(DType type, const void* block, QuantizedBlock& to);

// The block's 32 or 256 elements: the arithmetic of dequantize_row.
void block_values(DType type, const QuantizedBlock& block, float* to);

}  // namespace millrace::kernels
