// PageCopy: the bytes of one KV page to go from the pool to the host tier, or back. PageWrite: those of several from
// memory outside.
//
// The books (kv/) decide, the runner carries it out: the copies of a batch are done in their order before its rows are
// computed, and after those of all batches submitted before. So a page may be named as the source of a copy to the host
// and be written anew by the same batch.
#pragma once

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

// The bytes of complete pages, one page after the other, each with all layers, K and V (runner/kv_pages.h): of another
// scheduler of the same model.
struct PageWrite {
  std::vector<PageId> pages;
  std::vector<SharedBytes> bytes;  // in this order, each of whole pages: RunnerFacts::kv_page_bytes for each of `pages`
};

}  // namespace millrace
