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

// Query rows [row_begin, row_end) of one sequence times the query heads of one kv head.
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
  int64_t kv_head, group;      // query heads kv_head * group ... + group - 1
  int64_t row_begin, row_end;  // rows of the batch
  int64_t position;            // of row_begin
  int64_t window;
  float scale;
  float* scratch;  // kAttentionScratch floats, 64-byte aligned
};

inline constexpr int64_t kAttentionQueries = 32;  // query rows times heads worked on together, sharing loaded keys
inline constexpr int64_t kAttentionScratch = kAttentionQueries * (256 + 8);

struct KernelTable {
  const LinearKernel* linear[3];  // by WeightKind
  void (*widen)(WeightKind kind, const void* from, int64_t count, float* to);
  // One row; every `group` elements are normalized alone. y may be x.
  void (*rms_norm)(const float* x, int64_t width, const float* weight, int64_t group, float epsilon, float* y);
  void (*add)(const float* x, int64_t count, float* y);
  void (*swiglu)(const float* gate, const float* up, int64_t count, float* y);
  // One row of heads; `half` pairs per head.
  void (*rope)(float* x, int64_t width, int64_t head_dim, const float* cos, const float* sin, int64_t half);
  void (*attention)(const AttentionPart&);
  int32_t (*argmax)(const float* x, int64_t count);
};

extern const KernelTable kGenericKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const LinearKernel kAmxLinearKernels;  // bf16
#endif

}  // namespace millrace::kernels
