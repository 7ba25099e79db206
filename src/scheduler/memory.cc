#include "scheduler/memory.h"

#include <utility>

#include "base/log.h"

namespace millrace {

namespace {

// What the cache may be asked for: it never gives the last of these tokens, so that one is left to compute.
std::span<const int32_t> matchable(const Sequence& sequence) {
  const int64_t most = std::min<int64_t>(sequence.length(), int64_t{std::max(0, sequence.match_limit)} + 1);
  return std::span(sequence.tokens).first(static_cast<std::size_t>(most));
}

}  // namespace

Status validate(const MemoryOptions& options) {
  if (options.host_pages < 0) return invalid_argument("host_pages is {}; wanted an integer >= 0", options.host_pages);
  return validate(options.cache);
}

SequenceMemory::SequenceMemory(int32_t page_count, int32_t page_size, MemoryOptions options)
    : page_count_(page_count), page_size_(page_size), options_(options) {
  CHECK(validate(options_).ok());
  rebuild();
}

bool SequenceMemory::attach(Sequence& sequence, int64_t reserve) {
  // A sequence that holds something would lose track of its pages: a retracted one was released first.
  CHECK(sequence.pages.empty() && sequence.lock == nullptr && sequence.computed == 0);
  MatchResult match;
  if (options_.prefix_cache) {
    match = cache_->match_prefix({sequence.extra_key, weight_version_}, matchable(sequence));
  }
  const int32_t loaded = worth_loading(match.host_pages) ? match.host_pages : 0;
  RadixNode* last = loaded > 0 ? match.host_node : match.node;
  // The lock comes before the count of what is available: the matched pages themselves must not be evicted, and those
  // of the host tier must not make room for what is evicted here.
  const TreeMark before = mark_tree();
  cache_->lock(last);
  const auto in_pool = static_cast<int32_t>(match.pages.size());
  const int32_t lacking = pages_for(sequence.length()) - in_pool;
  if (available() < lacking + reserve || !allocate(lacking, match.pages)) {
    cache_->unlock(last);
    note_tree(before);
    return false;
  }
  if (loaded > 0) {
    cache_->load(last,
                 std::span(match.pages).subspan(static_cast<std::size_t>(in_pool), static_cast<std::size_t>(loaded)));
  }
  // Only where the sequence is attached: a request that waits and tries in each step must not make a prefix look
  // popular.
  cache_->count_use(last, sequence.priority);
  sequence.pages.append(match.pages);
  sequence.lock = last;
  sequence.shared_pages = in_pool + loaded;
  // Rows of cached pages are not computed again; planning begins at this one.
  sequence.computed = sequence.shared_pages * page_size_;
  sequence.host_tokens = loaded * page_size_;
  sequence.weight_version = weight_version_;
  // Rows of a row source depend on more than the tokens that the cache would compare.
  sequence.publishable = sequence.row_state == nullptr;
  note_tree(before);
  return true;
}

SequenceMemory::Trial SequenceMemory::begin_trial(const Sequence& waiting) {
  MatchResult match;
  if (options_.prefix_cache) {
    match = cache_->match_prefix({waiting.extra_key, weight_version_}, matchable(waiting));
  }
  cache_->lock(match.node);
  const auto in_pool = static_cast<int32_t>(match.pages.size());
  return {.lacking = pages_for(waiting.length()) - in_pool, .match = match.node, .unlocked = {}};
}

void SequenceMemory::try_without(Trial& trial, const Sequence& running) {
  cache_->unlock(running.lock);
  trial.unlocked.push_back(running.lock);
}

void SequenceMemory::end_trial(const Trial& trial) {
  for (RadixNode* node : trial.unlocked) cache_->lock(node);
  cache_->unlock(trial.match);
}

bool SequenceMemory::worth_loading(int32_t host_pages) const {
  // For few tokens computing is cheaper than the copy that a batch would wait for.
  return int64_t{host_pages} * page_size_ >= options_.cache.min_load_tokens;
}

int32_t SequenceMemory::cached_tokens(const Sequence& sequence) const {
  if (!options_.prefix_cache) return 0;
  const PeekResult found = cache_->peek({sequence.extra_key, weight_version_}, matchable(sequence));
  return (found.pages + (worth_loading(found.host_pages) ? found.host_pages : 0)) * page_size_;
}

bool SequenceMemory::grow(Sequence& sequence) {
  std::vector<PageId> fresh;
  const TreeMark before = mark_tree();
  const bool enough = allocate(pages_lacking(sequence), fresh);
  note_tree(before);
  // allocate() gives all or nothing, so a sequence never has half of what it lacks.
  if (enough) sequence.pages.append(fresh);
  return enough;
}

void SequenceMemory::publish(Sequence& sequence, std::vector<PageId>& duplicates) {
  const int32_t whole = sequence.computed / page_size_;
  if (!options_.prefix_cache || !sequence.publishable || whole <= sequence.shared_pages) return;
  CHECK(sequence.computed <= sequence.length());
  // What is shared already stands in the tree, down to the node that is locked: the cache goes on from there.
  const std::vector<PageId> own = sequence.pages.pages(sequence.shared_pages, whole);
  const auto first = static_cast<std::size_t>(sequence.shared_pages), count = own.size();
  const auto page = static_cast<std::size_t>(page_size_);
  const TreeMark before = mark_tree();
  InsertResult inserted = cache_->insert({sequence.extra_key, sequence.weight_version},
                                         std::span(sequence.tokens).subspan(first * page, count * page), own,
                                         {.priority = sequence.priority, .below = sequence.lock});
  // The new node before the old one is released: its path includes the old one, so at no moment is any of it evictable.
  cache_->lock(inserted.node);
  cache_->unlock(sequence.lock);
  sequence.lock = inserted.node;
  // Where the tree had these tokens already, its pages replace the sequence's: equal tokens, weights and key have equal
  // bits.
  sequence.pages.replace(sequence.shared_pages, inserted.pages);
  sequence.shared_pages = whole;
  duplicates.insert(duplicates.end(), inserted.duplicates.begin(), inserted.duplicates.end());
  note_tree(before);
}

void SequenceMemory::release(Sequence& sequence, Publish publish_first) {
  std::vector<PageId> duplicates;
  if (publish_first == Publish::kYes) publish(sequence, duplicates);
  release(duplicates);
  // Only those that the sequence holds itself; the shared ones stay the tree's and become evictable by the unlock.
  release(sequence.pages.pages(sequence.shared_pages));
  cache_->unlock(sequence.lock);
  sequence.lock = nullptr;
  sequence.pages.clear();
  sequence.shared_pages = 0;
  sequence.computed = 0;
}

bool SequenceMemory::allocate(int32_t count, std::vector<PageId>& out) {
  // Before evicting anything: a request that cannot have its pages must not cost others their cached prefixes.
  if (count > available()) return false;
  if (count > pool_->free_count()) cache_->evict(count - pool_->free_count());
  return pool_->allocate(count, out);
}

// A page that is not held is a bug; it is logged here and repaired by the self-check when idle.
void SequenceMemory::release(std::span<const PageId> pages) {
  for (PageId page : pages) {
    const Status status = pool_->release(page, PageState::kHeld);
    if (!status.ok()) LOG_ERROR("kv pages: {}", status.to_string());
  }
}

std::vector<PageCopy> SequenceMemory::take_copies() { return cache_->take_copies(); }

bool SequenceMemory::loads_due() const { return cache_->loads_due(); }

void SequenceMemory::return_copies(std::vector<PageCopy> copies) { cache_->return_copies(std::move(copies)); }

KvEvents SequenceMemory::take_events() { return cache_->take_events(); }

int32_t SequenceMemory::flush(std::optional<uint64_t> keep) {
  ++changes_;
  // Leases lock prefixes; a complete flush must leave nothing. Of old weights' pages they end when their transfer sees
  // the switch.
  if (!keep) revoke_leases();
  return cache_->drop_unlocked(keep);
}

// The coordinator numbers the weights. One that lost its numbers, because it was started again from older weights,
// gives the next number a second time, to other weights, while this cache has outlived it.
void SequenceMemory::set_weight_version(uint64_t version) {
  ++changes_;
  if (version == weight_version_) return;
  if (cache_->locks_version(version)) revoke_leases();
  cache_->drop_version(version);
  weight_version_ = version;
}

SequenceMemory::TreeMark SequenceMemory::mark_tree() const { return {cache_->cached_pages(), counters().evicted}; }

// After anything that may have changed the tree since `before`.
void SequenceMemory::note_tree(TreeMark before) {
  const TreeMark now = mark_tree();
  if (now == before) return;
  ++changes_;
  // What was added is the difference of the cached pages plus what was evicted in between. Unsigned, so that a decrease
  // wraps and the sum is right all the same.
  published_pages_ += static_cast<uint64_t>(now.cached - before.cached) + (now.evicted - before.evicted);
}

CacheCounters SequenceMemory::counters() const {
  CacheCounters sum = counters_before_;
  return sum += cache_->counters();
}

void SequenceMemory::describe(SchedulerFacts& facts) const {
  const PageBooks books = pool_->books();
  facts.pages_total = books.all;
  facts.pages_free = books.free();
  facts.pages_cached = books.cached();
  facts.pages_held = books.held();
  facts.pages_locked = cache_->locked_pages();
  facts.pages_importing = books.importing();
  facts.leases = static_cast<int32_t>(leases_.size());
  facts.revoked_leases = revoked_leases_;
  facts.page_size = page_size_;
  if (host_pool_) {
    facts.host_pages_total = host_pool_->page_count();
    facts.host_pages_used = host_pool_->page_count() - host_pool_->free_count();
  }
  const CacheCounters counted = counters();
  const auto tokens = [&](uint64_t pages) { return pages * static_cast<uint64_t>(page_size_); };
  facts.evicted_tokens = tokens(counted.evicted);
  facts.host_evicted_tokens = tokens(counted.host_evicted);
  facts.backed_up_tokens = tokens(counted.backed_up);
  facts.loaded_tokens = tokens(counted.loaded);
  facts.used_tokens = int64_t{facts.pages_held + facts.pages_locked} * page_size_;
  facts.weight_version = weight_version_;
}

Status SequenceMemory::verify(bool idle) const {
  RETURN_IF_ERROR(pool_->verify());
  if (host_pool_) RETURN_IF_ERROR(host_pool_->verify().with_prefix("host tier"));
  RETURN_IF_ERROR(cache_->verify());
  const PageBooks books = pool_->books();
  // Leases and imports may hold locks while no sequence runs.
  const bool locked = cache_->locked_pages() != 0 && leases_.empty() && prefix_locks_ == 0;
  if (idle && (books.free() + books.cached() + books.importing() != books.all || locked)) {
    return internal_error("idle, but {} and {} pages locked; wanted free + cached + importing = all and none locked",
                          books.to_string(), cache_->locked_pages());
  }
  if (host_pool_ && host_pool_->books().free() + host_pool_->books().cached() != host_pool_->page_count()) {
    return internal_error("host tier: {}; wanted free + cached = all", host_pool_->books().to_string());
  }
  return ok_status();
}

void SequenceMemory::rebuild() {
  ++changes_;
  KvEvents before;
  const bool again = cache_ != nullptr;
  if (again) {
    // Events that were not taken and the counters go on in the new cache: a stream of events has no gap, and metrics
    // never fall.
    before = cache_->take_events();
    counters_before_ += cache_->counters();
  }
  leases_.clear();  // with the nodes that they lock
  leased_pages_ = prefix_locks_ = 0;
  // First the cache, which refers to both pools.
  cache_.reset();
  pool_ = std::make_unique<PagePool>(page_count_);
  host_pool_.reset();
  if (options_.prefix_cache && options_.host_pages > 0) host_pool_ = std::make_unique<PagePool>(options_.host_pages);
  cache_ = std::make_unique<RadixCache>(*pool_, page_size_, options_.cache, host_pool_.get());
  if (again) cache_->continue_events(std::move(before));
}

}  // namespace millrace
