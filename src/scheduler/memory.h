// SequenceMemory: gives KV pages to sequences and takes them back. It joins the page pool, the radix cache and the host
// tier, so that the scheduler speaks of sequences only. The bytes behind the pages are the runner's.
//
// Invariants (docs/scheduler.md):
//   books: free + cached + held = all, after every call
//   a sequence's page table is [shared: the tree's, locked] [own: held by it alone]; rows are only ever written to own
//   pages, because shared pages lie below `computed`
//   changes() grows whenever a lookup may find something else than before
//
// Batches in flight. The books run ahead of the bytes: attach() may hand out a page whose bytes are still on the host,
// or one whose old bytes are still to be copied there. take_copies() gives those copies; they belong into the next
// batch that is submitted, in front of its rows. The runner does everything in the order of submission, so every page
// holds the right bytes by the time that a row reads it, and a page may be given to somebody else as soon as its copy
// to the host was decided. Only a page that a row *in flight* may still write must not be reused: see publish() and
// release().
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/cache_options.h"
#include "kv/kv_event.h"
#include "kv/page_copy.h"
#include "kv/page_pool.h"
#include "kv/radix_cache.h"
#include "scheduler/options.h"
#include "scheduler/sequence.h"

namespace millrace {

inline constexpr int32_t kLeaseShare = 2;  // leases hold at most one page of so many

// Whether the KV that a sequence computed may be found by others. kNo when the step that computed it failed.
enum class Publish : bool { kNo = false, kYes = true };

struct MemoryOptions {
  bool prefix_cache = true;  // off: nothing is shared, nothing stays, and the other options are of no meaning
  CacheOptions cache;        // strategy and policy; parse_eviction_strategy() and parse_write_policy() know the names
  int32_t host_pages = 0;    // of the host tier (RunnerFacts::host_page_count); 0: there is none
};

// kInvalidArgument names the option, the value seen and the value wanted.
Status validate(const MemoryOptions& options);

class SequenceMemory {
 public:
  SequenceMemory(int32_t page_count, int32_t page_size, MemoryOptions options);

  int32_t page_size() const { return page_size_; }
  bool shares_prefixes() const { return options_.prefix_cache; }
  int32_t pages_for(int64_t tokens) const { return static_cast<int32_t>((tokens + page_size_ - 1) / page_size_); }
  int32_t available() const { return pool_->free_count() + cache_->evictable_pages(); }

  // Finds the longest cached prefix of the sequence's tokens (at most sequence.match_limit of them, and never the
  // last), locks it, and allocates pages for all the other tokens; sets computed, pages, shared_pages, lock,
  // weight_version, host_tokens. False, and nothing is attached, when fewer than `reserve` pages would stay available.
  bool attach(Sequence& sequence, int64_t reserve);

  // ---- for preemption: would a sequence that waits fit, if others gave way? Between begin_trial() and end_trial()
  // only try_without() is called.
  struct Trial {
    int32_t lacking = 0;  // pages that attach() would allocate
    RadixNode* match = nullptr;
    std::vector<RadixNode*> unlocked;
  };
  // Locks what attach() would find, so that available() does not count it.
  Trial begin_trial(const Sequence& waiting);
  // available() counts the pages that this one alone shares with the cache. Those that it holds itself come on top.
  void try_without(Trial& trial, const Sequence& running);
  void end_trial(const Trial& trial);

  // How many tokens attach() would find in the cache now, the host tier included. Nothing is touched or locked.
  int32_t cached_tokens(const Sequence& sequence) const;

  // That the next batch is computed with; 0 until it is known. Only pages computed with it are found. Another version
  // begins with nothing cached: weights that had its number before may have been others.
  uint64_t weight_version() const { return weight_version_; }
  void set_weight_version(uint64_t version);
  // Sequences, or leases, hold pages of the last time that this version served.
  bool locks_version(uint64_t version) const { return cache_->locks_version(version); }

  // Pages that the sequence lacks to compute all its tokens: 0 or 1 for one that decodes.
  int32_t pages_lacking(const Sequence& sequence) const {
    return std::max(0, pages_for(sequence.length()) - sequence.pages.size());
  }
  // Allocates those pages, evicting cached ones where none is free. False: not enough, nothing has changed.
  bool grow(Sequence& sequence);

  // Puts the whole pages that are computed into the cache. The sequence goes on with the cache's pages where they were
  // cached already; its own of the same tokens are appended to `duplicates`. They stay held until release(), for
  // which the caller waits until no batch in flight names them any more. `computed` must count settled rows only: what
  // is published must be in the page's bytes.
  void publish(Sequence& sequence, std::vector<PageId>& duplicates);
  void release(std::span<const PageId> pages);

  // Gives everything back at once: computed whole pages to the cache (kYes), the others to the pool. The sequence then
  // holds nothing and nothing of it is computed. Only while no batch in flight names the sequence.
  void release(Sequence& sequence, Publish publish_first);

  // ---- for transfers between schedulers (scheduler/page_transfers.h)
  // The longest cached prefix of `tokens` in complete pages, all of `tokens` at most, in the pool. Its last node is
  // locked until unlock_prefix(); nullptr: nothing is cached.
  struct LockedPrefix {
    std::vector<PageId> pages;
    RadixNode* node = nullptr;
  };
  LockedPrefix lock_prefix(const CacheNamespace& space, std::span<const int32_t> tokens);
  void unlock_prefix(RadixNode* node);
  // How many pages lock_prefix() would find.
  int32_t cached_pages(const CacheNamespace& space, std::span<const int32_t> tokens) const;
  // Appends `count` pages, now kImporting, evicting cached ones. False: fewer are available, nothing has changed.
  bool begin_import(int32_t count, std::vector<PageId>& out);
  // `tokens` continue the path of `below`, and lie in the pages that begin_import() gave. They are cached.
  void publish_import(const CacheNamespace& space, std::span<const int32_t> tokens, std::span<const PageId> pages,
                      RadixNode* below);
  void cancel_import(std::span<const PageId> pages);

  // Pages are locked or taken for bytes that a batch moves, or is about to.
  bool transferring() const { return prefix_locks_ > 0 || pool_->books().importing() > 0; }

  // A lease keeps a prefix that no request runs with from being evicted: it lies on the path of `node`, which the
  // caller has locked, and replaces the one with the same number. False: leases would hold more than kLeaseShare of the
  // pool.
  bool set_lease(uint64_t number, RadixNode* node, int32_t pages);
  void end_lease(uint64_t number);
  // Ends all: a request that runs alone, or a flush, needs the pages. True: there were some.
  bool revoke_leases();

  // The page copies decided since the last call, for the front of the next batch; also for one without rows.
  std::vector<PageCopy> take_copies();
  // take_copies() would give some that bring pages back from the host tier.
  bool loads_due() const;
  // What take_copies() gave, when submit() refused the batch: the next call gives it again, in front of what is decided
  // since. A batch that was accepted and failed counts as copied.
  void return_copies(std::vector<PageCopy> copies);

  // What changed in the cache since the last call, when MemoryOptions::cache.events. Bounded (kMaxKvEvents).
  KvEvents take_events();

  PageBooks books() const { return pool_->books(); }
  // Starts at 1 and grows with what was published, evicted or dropped, and with another weight version.
  uint64_t changes() const { return changes_; }
  // Pages that came into the cache since the beginning.
  uint64_t published_pages() const { return published_pages_; }
  // Since the beginning; rebuild() does not set them back.
  CacheCounters counters() const;
  // Pages, cached and evicted tokens, weight version.
  void describe(SchedulerFacts& facts) const;
  const RadixCache& cache() const { return *cache_; }
  const PagePool* host_pool() const { return host_pool_.get(); }  // nullptr: there is no host tier
  PagePool& pool() { return *pool_; }
  const PagePool& pool() const { return *pool_; }

  // Recounts everything; O(pages). `idle`: no sequence holds anything, so held must be 0 and nothing locked.
  Status verify(bool idle) const;
  // Forgets everything: all pages free, the cache and the host tier empty. Only when no sequence holds anything and
  // nothing is in flight.
  void rebuild();
  // Drops from the cache and the host tier what no sequence uses: all of it, or only what was computed with other
  // weights than `keep`, which no request can match any more. Returns how many pages of the pool became free.
  int32_t flush(std::optional<uint64_t> keep = std::nullopt);

 private:
  // What tells whether the tree has changed: its pages, and those that ever left it for want of room.
  struct TreeMark {
    int32_t cached = 0;
    uint64_t evicted = 0;
    friend bool operator==(TreeMark, TreeMark) = default;
  };
  TreeMark mark_tree() const;
  void note_tree(TreeMark before);

  void free_pages(std::span<const PageId> pages, PageState from);
  bool worth_loading(int32_t host_pages) const;
  bool allocate(int32_t count, std::vector<PageId>& out);

  struct Lease {
    RadixNode* node = nullptr;
    int32_t pages = 0;  // of its path
  };

  int32_t page_count_;
  int32_t page_size_;
  MemoryOptions options_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PagePool> host_pool_;
  std::unique_ptr<RadixCache> cache_;
  CacheCounters counters_before_;  // of the caches that rebuild() replaced
  uint64_t weight_version_ = 0;
  uint64_t changes_ = 0;  // the constructor's rebuild() makes it 1
  uint64_t published_pages_ = 0;
  std::map<uint64_t, Lease> leases_;
  int32_t leased_pages_ = 0;     // a page under two leases counts twice
  int32_t prefix_locks_ = 0;     // of lock_prefix()
  uint64_t revoked_leases_ = 0;  // since the beginning
};

}  // namespace millrace
