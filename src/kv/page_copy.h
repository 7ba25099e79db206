// PageCopy: the bytes of one KV page to go from the pool to the host tier, or back. PageWrite: those of several from
// memory outside.
//
// The books (kv/) decide, the runner carries it out: the copies of a batch are done in their order before its rows are
// computed, and after those of all batches submitted before. So a page may be named as the source of a copy to the host
// and be written anew by the same batch.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "tensor/shared_bytes.h"

namespace millrace {

enum class CopyDirection : bool { kToHost = false, kFromHost = true };

struct PageCopy {
  CopyDirection direction = CopyDirection::kToHost;
  PageId page;       // in the pool
  PageId host_page;  // in the host tier, counted from 0 as well
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

// Layers [begin, end) of the pages of a runner; end 0: all.
struct LayerSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t count() const { return end - begin; }
  friend bool operator==(const LayerSpan&, const LayerSpan&) = default;
};

// The bytes of pages, one page after the other, each with these layers, K and V (runner/kv_pages.h): of another
// scheduler of the same model.
struct PageWrite {
  std::vector<PageId> pages;
  std::vector<SharedBytes> bytes;  // in this order, each of whole pages: the same number of bytes for each of `pages`
  LayerSpan layers{};
};

}  // namespace millrace
