// PageTransfers: KV pages of the prefix cache on their way to other schedulers of the same model, and from them.
//
// A caller reads complete pages of a cached prefix as bytes, and writes bytes under tokens that it knows: they become a
// cached prefix like any other, so a request that comes later finds them, or what is missing is computed. Nothing here
// knows peers, messages or time; stages/transfer/ does.
//
//   read():  at once: what is cached was computed by settled batches, and is not written any more; of the batch that
//            is computed, layers in which its rows are stored
//   write(): takes pages -> PageWrite in the next batch -> settled: in the cache under their tokens
//   write_layers(): the same in several writes; pages are cached when they have all layers
//
// The runner writes the bytes between the copies and the rows of a batch, in the order of submission. Until it has all
// layers such a page is kImporting: in no other's page table, not found in the cache, and counted. What failed, or was
// computed with other weights, or fell to a loss of all KV, is not published; and what waits for more layers gives way
// to a request that needs the memory.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runner/runner.h"
#include "scheduler/in_flight.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"

namespace millrace {

inline constexpr std::size_t kMaxQueuedWrites = 256;            // that no batch has taken
inline constexpr int64_t kMaxWrittenBytesInBatch = 32ll << 20;  // one write at least
inline constexpr uint64_t kMaxImport = uint64_t{1} << 63;       // numbers of imports are below

// Tokens in complete pages, and whose pages they may share.
struct TransferPrefix {
  CacheNamespace space;
  std::vector<int32_t> tokens;
};

class PageTransfers {
 public:
  // What is passed outlives it. It counts in `counters`.
  PageTransfers(Runner& runner, const RunnerFacts& model, SequenceMemory& memory, const BatchesInFlight& in_flight,
                SchedulerFacts& counters)
      : runner_(runner), model_(model), memory_(memory), in_flight_(in_flight), counters_(counters) {}

  // kUnsupported: the runner cannot, or there is no prefix cache. kUnavailable: the weights are not known yet.
  Status supported() const;
  // Where a request with this extra key finds pages now.
  CacheNamespace space_of(std::string extra_key) const { return {std::move(extra_key), memory_.weight_version()}; }
  // Of a page, each with the same number of bytes.
  int32_t layers() const { return std::max(1, model_.layers); }
  // Complete pages of `prefix` in the pool now.
  int32_t cached_pages(const TransferPrefix& prefix) const { return memory_.cached_pages(prefix.space, prefix.tokens); }

  // Keeps what is cached of `prefix` from being evicted, under a number of the caller's; again: what is cached by then.
  // Returns how many pages are cached. Without space for another lease (memory.h) they may be evicted.
  int32_t lease(uint64_t number, const TransferPrefix& prefix);
  void end_lease(uint64_t number) { memory_.end_lease(number); }

  // Of the pages below `end` those that are not cached are computed now, and have the first `layers` layers.
  struct StoredPages {
    int32_t end = 0;
    int32_t layers = 0;
  };
  StoredPages stored_pages(const TransferPrefix& prefix) const;
  // Grows with steps that failed, in part or as a whole: what was read of their layers is of no worth.
  uint64_t failures() const { return failures_; }

  // The bytes of the pages [first, first + count) of `prefix`, of which all that lie below are cached too, to `to`, as
  // large as they are. kUnavailable: they are not cached, or not any more, and these layers are not stored;
  // kResourceExhausted: later, pages come back from the host tier now.
  Status read(const TransferPrefix& prefix, int32_t first, int32_t count, std::span<std::byte> to,
              LayerSpan layers = {});
  // Into the cache as those pages, each of `bytes` whole ones; all below `first` are cached. `ticket` names the result.
  // kUnavailable: they are not; kResourceExhausted: kMaxQueuedWrites wait, or fewer pages are available;
  // kInvalidArgument: the number of bytes is wrong; kConflict: the weights are others by now.
  Status write(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count,
               std::vector<SharedBytes> bytes);
  // As write(), of some layers. `import`, below kMaxImport, names what belongs together: a page's layers come in their
  // order, and new pages behind those that it has. kUnavailable too: a write of it failed, or its pages were taken.
  Status write_layers(uint64_t ticket, uint64_t import, const TransferPrefix& prefix, int32_t first, int32_t count,
                      LayerSpan layers, std::vector<SharedBytes> bytes);
  // No more is written under this number; pages that lack layers are free when no batch writes to them.
  void end_import(uint64_t import);

  struct Done {
    uint64_t ticket = 0;
    Status status;
  };
  // Each ticket once, in no order that means anything.
  std::vector<Done> take_done() { return std::exchange(done_, {}); }

  // kMaxQueuedWrites wait: the next one would be refused.
  bool full() const { return queued_.size() >= kMaxQueuedWrites; }
  // Grows with what is cached or evicted.
  uint64_t changes() const { return memory_.changes(); }

  // ---- for the scheduler
  bool queued() const { return !queued_.empty() || waits_for_loads_; }
  // A read waits for pages that the next batch brings back from the host tier, even if it does nothing else.
  bool waits_for_loads() const { return waits_for_loads_; }
  // Gives the batch what is queued, kMaxWrittenBytesInBatch at most.
  void add_to(Batch& batch);
  // The batch that add_to() has filled was submitted, or refused. `loads`: it brings pages back from the host tier.
  void submitted(uint64_t step, bool loads);
  void refused(const Status& status);
  // `result`: of the oldest batch in flight. `kv_lost`: its bytes are of no worth.
  void settle(const BatchResult& result, bool kv_lost);
  // A request needs memory and cannot have it: pages that only wait for more layers are free.
  void give_way();
  // All KV was lost: what is queued fails, leases end.
  void forget();

 private:
  struct Write {
    uint64_t ticket = 0;
    uint64_t import = 0;
    int32_t first = 0;  // of `pages`, in the prefix
    std::vector<PageId> pages;
    LayerSpan layers;
    std::vector<SharedBytes> bytes;
  };
  struct Sent {
    uint64_t step = 0;
    std::vector<Write> writes;
  };
  // Pages that were taken and are not cached, of one prefix and without gaps.
  struct Page {
    PageId id;
    int32_t begun = 0;   // layers that were given to the runner, or are queued
    int32_t stored = 0;  // and those that it has stored
  };
  struct Import {
    TransferPrefix prefix;
    int32_t first = 0;  // of `pages`, in the prefix
    std::deque<Page> pages{};
    RadixNode* lock = nullptr;  // of the prefix below them
    int32_t moving = 0;         // writes that are queued or in flight
    bool ended = false;         // its pages are free once nothing moves
  };
  using Imports = std::map<uint64_t, Import>;
  struct Computing {
    const Sequence* sequence = nullptr;
    StoredPages stored;
  };

  Status check(const TransferPrefix& prefix, int32_t first, int32_t count) const;
  Status check_bytes(std::size_t given, int32_t count, LayerSpan layers) const;
  Computing find_computing(const TransferPrefix& prefix) const;
  Result<Imports::iterator> open(uint64_t number, const TransferPrefix& prefix, int32_t first);
  Status take_pages(Import& import, int32_t first, int32_t count, LayerSpan layers);
  void end(Write& write, Status status);
  void publish(Import& import);
  void close(Imports::iterator it);

  Runner& runner_;
  const RunnerFacts& model_;
  SequenceMemory& memory_;
  const BatchesInFlight& in_flight_;
  SchedulerFacts& counters_;
  Imports imports_;
  uint64_t next_import_ = kMaxImport;  // of a write of all layers
  uint64_t failures_ = 0;
  std::deque<Write> queued_;
  std::vector<Write> adding_;             // to a batch that is not submitted yet
  std::deque<Sent> sent_;                 // in flight, the oldest first
  std::optional<uint64_t> loading_step_;  // the newest in flight that brings pages back from the host tier
  bool waits_for_loads_ = false;
  std::vector<Done> done_;
};

}  // namespace millrace
