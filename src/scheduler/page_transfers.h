// PageTransfers: KV pages of the prefix cache on their way to other schedulers of the same model, and from them.
//
// A caller reads complete pages of a cached prefix as bytes, and writes bytes under tokens that it knows: they become a
// cached prefix like any other, so a request that comes later finds them, or what is missing is computed. Nothing here
// knows peers, messages or time; stages/transfer/ does.
//
//   read():  locks the prefix -> PageRead in the next batch  -> settled: unlocked, the bytes in take_done()
//   write(): takes pages      -> PageWrite in the next batch -> settled: in the cache under their tokens
//
// The runner moves the bytes between the copies and the rows of a batch, in the order of submission. So a page that is
// to be read is locked until then, and one that is written is kImporting until then: in no other's page table, not
// found in the cache, and counted. What failed, or was computed with other weights, or fell to a loss of all KV, is not
// published.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runner/runner.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"

namespace millrace {

inline constexpr std::size_t kMaxQueuedMoves = 256;           // reads and writes that no batch has taken
inline constexpr int64_t kMaxMovedBytesInBatch = 32ll << 20;  // one move at least

// Tokens in complete pages, and whose pages they may share.
struct TransferPrefix {
  CacheNamespace space;
  std::vector<int32_t> tokens;
};

class PageTransfers {
 public:
  // What is passed outlives it. It counts in `counters`.
  PageTransfers(const RunnerFacts& model, SequenceMemory& memory, SchedulerFacts& counters)
      : model_(model), memory_(memory), counters_(counters) {}

  // kUnsupported: the runner cannot, or there is no prefix cache. kUnavailable: the weights are not known yet.
  Status supported() const;
  // Where a request with this extra key finds pages now.
  CacheNamespace space_of(std::string extra_key) const { return {std::move(extra_key), memory_.weight_version()}; }
  // Complete pages of `prefix` in the pool now.
  int32_t cached_pages(const TransferPrefix& prefix) const { return memory_.cached_pages(prefix.space, prefix.tokens); }

  // Keeps what is cached of `prefix` from being evicted, under a number of the caller's; again: what is cached by then.
  // Returns how many pages are cached. Without space for another lease (memory.h) they may be evicted.
  int32_t lease(uint64_t number, const TransferPrefix& prefix);
  void end_lease(uint64_t number) { memory_.end_lease(number); }

  // The pages [first, first + count) of `prefix`, of which all that lie below are cached too. kUnavailable: they are
  // not, or not any more; kResourceExhausted: kMaxQueuedMoves wait. `ticket` names the result.
  Status read(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count);
  // Into the cache as those pages; all pages below `first` are cached. Errors as read(), kInvalidArgument where the
  // number of bytes is wrong, kConflict where the weights are others by now, kResourceExhausted where fewer pages are
  // available.
  Status write(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count,
               std::shared_ptr<const std::string> bytes);

  struct Done {
    uint64_t ticket = 0;
    Status status;
    std::string bytes;  // of a read
  };
  // Each ticket once, in no order that means anything.
  std::vector<Done> take_done() { return std::exchange(done_, {}); }

  // kMaxQueuedMoves wait: the next read or write would be refused.
  bool full() const { return queued_.size() >= kMaxQueuedMoves; }
  // Grows with what is cached or evicted.
  uint64_t changes() const { return memory_.changes(); }

  // ---- for the scheduler
  bool queued() const { return !queued_.empty(); }
  // Gives the batch what is queued, kMaxMovedBytesInBatch at most.
  void add_to(Batch& batch);
  // The batch that add_to() has filled was submitted, or refused.
  void submitted(uint64_t step);
  void refused(const Status& status);
  // `result`: of the oldest batch in flight. `kv_lost`: its bytes are of no worth.
  void settle(BatchResult& result, bool kv_lost);
  // All KV was lost: what is queued fails, leases end.
  void forget();

 private:
  struct Move {
    uint64_t ticket = 0;
    bool writes = false;
    CacheNamespace space;
    std::vector<int32_t> tokens;  // of a write: those of `pages`
    std::vector<PageId> pages;
    RadixNode* lock = nullptr;  // of the prefix: with the pages of a read, below those of a write
    std::shared_ptr<const std::string> bytes;
  };
  struct Sent {
    uint64_t step = 0;
    std::vector<Move> moves;
  };
  Status check(const TransferPrefix& prefix, int32_t first, int32_t count) const;
  void end(Move& move, Status status, std::string bytes = {});

  const RunnerFacts& model_;
  SequenceMemory& memory_;
  SchedulerFacts& counters_;
  std::deque<Move> queued_;
  std::vector<Move> adding_;  // to a batch that is not submitted yet
  std::deque<Sent> sent_;     // in flight, the oldest first
  std::vector<Done> done_;
};

}  // namespace millrace
