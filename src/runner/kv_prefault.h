// KvPrefault: has the kernel put memory behind KV pages before a step writes to them.
//
// The first write to fresh memory waits until the kernel has found and zeroed it, a huge page at a time. K and V of
// each layer are buffers of their own whose pages fill together, so the step that first reaches a new huge page reaches
// one in every buffer: 56 of them, 117 MB, for a model of 28 layers. Pages are handed out from the lowest number up
// (kv/page_pool.h), so what will be written next lies above the highest page used so far.
//
// Memory is asked for with MADV_POPULATE_WRITE (Linux 5.14), which changes no byte and is no write in the memory model:
// another thread may write to the same pages meanwhile. Where the kernel lacks it, nothing is prefaulted. A store, even
// of the byte that is there, would be a race with such a thread.
//
// Owner: the model runner, on its compute thread. Thread safety: none for the object; see above for the pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace millrace {

// Of one prefault: what the kernel backs at once where it has huge pages, some 0.2 to 6 ms of work.
inline constexpr int64_t kKvPrefaultBytes = int64_t{2} << 20;
// In a step, at most: sequences that were begun together take their pages together.
inline constexpr int kKvPrefaultsInStep = 2;
// So long a runner has been without work before it begins to prefault: a gap between two steps is none.
inline constexpr int kKvIdleMs = 2;
// How far a runner without work goes ahead: so many tokens, and so many bytes in all buffers together at most. More
// would be taken from other programs for a pool that may never fill.
inline constexpr int64_t kKvTokensAhead = 2048;
inline constexpr int64_t kKvBytesAhead = int64_t{256} << 20;

// Has the kernel back [begin, begin + bytes), widened to whole pages; `begin` may be any address. 0, or an errno:
// EINVAL where the kernel lacks MADV_POPULATE_WRITE.
int populate_pages(char* begin, int64_t bytes);
using PopulatePages = int (*)(char* begin, int64_t bytes);

class KvPrefault {
 public:
  // The layers' pages must outlive this; a range without layers has none, and nothing to do. Tests pass another
  // `populate`.
  explicit KvPrefault(std::span<const kernels::KvLayer> layers, PopulatePages populate = populate_pages);

  // The pages of a sequence that is about to run are in use from now on.
  void add_used(std::span<const int32_t> pages);

  // Prefaults one huge page, where fewer than `rows` of them above those in use are backed in every buffer. False:
  // there was nothing to do, or the kernel cannot.
  bool prefault(int64_t rows);
  // How many huge pages of every buffer hold kKvTokensAhead within kKvBytesAhead: at least one.
  int64_t rows_ahead() const;
  // Prefaults one huge page, where fewer buffers have their next one than the part of the present one that is used: the
  // pace of a busy runner, whose steps share the cost. False: as prefault().
  bool prefault_in_step();

 private:
  PopulatePages populate_;
  std::vector<char*> buffers_;
  int64_t page_size_ = 1;   // tokens
  int64_t page_bytes_ = 0;  // of one buffer, like size_
  int64_t size_ = 0;
  int64_t used_bytes_ = 0;  // up to the end of the highest page used
  // Rows, one kKvPrefaultBytes of every buffer: those up to the highest page used, and those that are backed.
  int64_t used_ = 0;
  int64_t backed_ = 0;
  std::size_t buffer_ = 0;  // the first one without row backed_
  bool available_ = true;   // the kernel has MADV_POPULATE_WRITE, as far as is known
};

}  // namespace millrace
