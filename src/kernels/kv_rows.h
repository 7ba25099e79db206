// What lies in a KV page: one row (one token, one kv head, K or V) written in the layer's dtype and read back. The
// layout and the rounding are stated at KvLayer in ops.h. All implementations store through this file, so the pages
// that they leave are the same to the bit.
// Thread safety: different rows may be written at the same time.
#pragma once

#include "kernels/ops.h"

namespace millrace::kernels {

struct KvAddress {
  int64_t page = 0;
  int64_t head = 0;  // kv head
  int64_t slot = 0;
};

// The slot of position p in a sequence's pages.
inline KvAddress kv_address(const KvLayer& kv, std::span<const int32_t> pages, int64_t head, int64_t position) {
  return {pages[static_cast<std::size_t>(position / kv.page_size)], head, position % kv.page_size};
}

// Writes head_dim elements. `base` is kv.k or kv.v.
void store_kv_row(const KvLayer& kv, void* base, const KvAddress& address, const float* from);

// Reads head_dim elements, exact: kI8 gives value * scale without rounding.
void read_kv_row(const KvLayer& kv, const void* base, const KvAddress& address, double* to);

}  // namespace millrace::kernels
