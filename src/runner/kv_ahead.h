// KvAhead: has the system put memory behind KV pages before a step writes to them.
//
// The first write to fresh memory waits until the system has found and zeroed it, a huge page at a time. K and V of
// each layer are buffers of their own whose pages fill together, so the step that first reaches a new huge page reaches
// one in every buffer: 56 of them, 117 MB, for a model of 28 layers. Pages are handed out from the lowest number up
// (kv/page_pool.h), so what will be written next lies above the highest page seen so far.
//
// The bytes keep what they hold. Owner: the model runner, on its compute thread. Thread safety: none; nobody else may
// write to the pages meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "runner/runner.h"

namespace millrace {

// Of one touch: what the system backs at once where it has huge pages, some 0.2 to 6 ms of work.
inline constexpr int64_t kKvTouchBytes = int64_t{2} << 20;
// In a step, at most: sequences that were begun together take their pages together.
inline constexpr int kKvTouchesInStep = 2;
// So long a runner has been without work before it begins to touch: a gap between two steps is none.
inline constexpr int kKvIdleMs = 2;
// How far a runner without work goes ahead: so many tokens, and so many bytes in all buffers together at most. More
// would be taken from other programs for a pool that may never fill.
inline constexpr int64_t kKvTokensAhead = 2048;
inline constexpr int64_t kKvBytesAhead = int64_t{256} << 20;

class KvAhead {
 public:
  // The layers' pages must outlive this.
  explicit KvAhead(std::span<const kernels::KvLayer> layers);

  // The pages that a batch uses are in use from now on.
  void saw(const Batch& batch);

  // One touch, where less than `rows` huge pages above those in use are there in every buffer; false: there was nothing
  // to do.
  bool touch(int64_t rows);
  // How many huge pages of every buffer hold kKvTokensAhead within kKvBytesAhead: at least one.
  int64_t rows_ahead() const;
  // One touch, where fewer buffers have their next huge page than the part of the present one that is used: the pace of
  // a busy runner, whose steps share the cost. False: there was nothing to do.
  bool touch_in_step();

 private:
  std::vector<char*> buffers_;
  int64_t page_size_ = 1;   // tokens
  int64_t page_bytes_ = 0;  // of one buffer, like size_
  int64_t size_ = 0;
  int64_t used_bytes_ = 0;  // up to the end of the highest page seen
  // Rows, one kKvTouchBytes of every buffer: those up to the highest page seen, and those that are there.
  int64_t used_ = 0;
  int64_t touched_ = 0;
  std::size_t buffer_ = 0;  // the first one without row touched_
};

}  // namespace millrace
