// The border between cpu_ops.cc and the per-ISA kernels: plain structs and function pointers, nothing inline.
//
// Each kernels_<isa>.cc is compiled with its own instruction-set flags and includes the same *.inl texts over its own
// 8-lane vector type, all inside an unnamed namespace. Those files must not instantiate inline functions or templates
// of shared headers: the linker keeps one copy of such a function for the whole program, and that copy may hold
// instructions that the processor lacks. The test kernels.no_shared_code looks at their symbols.
//
// Thread safety: kernels write only what their arguments name; all may run concurrently.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_table.h"

namespace millrace::kernels {

enum class KvKind : int { kF32, kF16, kBF16, kI8 };

inline constexpr int64_t kAttentionBlockKeys = 64;   // ops.h: kAttentionBlock
inline constexpr int64_t kAttentionRangeKeys = 128;  // ops.h: kAttentionRange
inline constexpr int64_t kAttentionMaxHeadDim = 256;
// Query rows times heads that one part may hold. They share the keys and values that were brought into scratch, which
// costs as much as 4 queries or so.
inline constexpr int64_t kAttentionQueries = 192;
inline constexpr int64_t kAttentionPartial = kAttentionMaxHeadDim + 16;  // floats that a query leaves in `partial`
inline constexpr int64_t kAttentionScratch =
    2 * kAttentionMaxHeadDim * kAttentionBlockKeys + kAttentionQueries * (3 * kAttentionMaxHeadDim + 32) + 2048;

// One query row of a part. Where its keys are cut into parts, each of its heads has `slots` sums of kAttentionPartial
// floats: one over the ranges below `later`, then one for each range from there on. Head 0 begins at `partials` of
// AttentionPart::partials; -1: one part has all keys, and writes `out`.
struct AttentionRow {
  int64_t row;       // of the batch
  int64_t position;  // the last that it sees
  int64_t partials;
  int64_t slots;
  int64_t later;
};

// Query rows, of one or more sequences, times query heads [head_begin, head_end) of one kv head: at most
// kAttentionQueries; over the keys of positions [key_begin, key_end), both multiples of kAttentionRangeKeys but the
// end, which lie in the same pages for all of them.
struct AttentionPart {
  const float* q;  // row 0 of the batch, head 0
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  const char* k;  // as KvLayer in ops.h lays them out, any alignment
  const char* v;
  KvKind kind;
  const int32_t* pages;
  int64_t page_size, page_stride_bytes, head_dim;
  int64_t kv_head;
  int64_t head_begin, head_end;
  const AttentionRow* rows;
  int64_t row_count;
  int64_t key_begin, key_end;
  int64_t window;
  float scale;
  float* scratch;  // kAttentionScratch floats, 64-byte aligned
  float* partials;
};

struct KernelTable {
  const LinearKernel* linear[3];  // by WeightKind
  const LinearKernel* rounded;    // of bf16 weights, where activations are bf16 too
  void (*widen)(WeightKind kind, const void* from, int64_t count, float* to);
  // One row; every `group` elements are normalized alone. y may be x.
  void (*rms_norm)(const float* x, int64_t width, const float* weight, int64_t group, float epsilon, float* y);
  // One row. y may be x.
  void (*layer_norm)(const float* x, int64_t width, const float* weight, const float* bias, float epsilon, float* y);
  void (*gelu)(const float* x, int64_t count, bool tanh, float* y);
  void (*add)(const float* x, int64_t count, float* y);
  void (*add_scaled)(const float* x, int64_t count, const float* scale, float* y);
  // One row. y may be x. `bound`: of the angle.
  void (*snake)(const float* x, int64_t count, const float* frequency, const float* magnitude, float bound, float* y);
  // One row of y; the `taps` rows of x begin `stride` floats apart, those of `weight` [taps, width] `width`.
  void (*depthwise)(const float* x, int64_t stride, int64_t width, int64_t taps, const float* weight, const float* bias,
                    float* y);
  void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);
  // One row of heads; `half` pairs per head.
  void (*rope)(float* x, int64_t width, int64_t head_dim, const float* cos, const float* sin, int64_t half);
  void (*attention)(const AttentionPart&);
  // Writes one head of one row from its partial sums, which lie one behind the other.
  void (*merge_partials)(const float* partials, int64_t slots, int64_t head_dim, float* out);
};

extern const KernelTable kGenericKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const LinearKernel kAvx512Bf16LinearKernels;  // KernelTable::rounded
extern const LinearKernel kAmxLinearKernels;         // bf16
extern const LinearKernel kAmxRoundedLinearKernels;  // KernelTable::rounded
#endif

}  // namespace millrace::kernels
