#include "scheduler/memory.h"

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

bool SequenceMemory::attach(Sequence& sequence, uint64_t weight_version, int64_t reserve) {
  CHECK(sequence.pages.empty() && sequence.lock == nullptr && sequence.computed == 0);
  MatchResult match;
  if (options_.prefix_cache) {
    match = cache_->match_prefix({sequence.extra_key, weight_version}, matchable(sequence));
  }
  // The lock comes before the count of what is available: the matched pages themselves must not be evicted.
  cache_->lock(match.node);
  const int32_t matched = static_cast<int32_t>(match.pages.size());
  const int32_t lacking = pages_for(sequence.length()) - matched;
  if (available() < lacking + reserve || !allocate(lacking, match.pages)) {
    cache_->unlock(match.node);
    return false;
  }
  sequence.pages = std::move(match.pages);
  sequence.lock = match.node;
  sequence.shared_pages = matched;
  sequence.computed = matched * page_size_;
  sequence.weight_version = weight_version;
  sequence.publishable = true;
  sequence.host_tokens = 0;
  return true;
}

int32_t SequenceMemory::cached_tokens(const Sequence& sequence, uint64_t weight_version) const {
  if (!options_.prefix_cache) return 0;
  return cache_->peek({sequence.extra_key, weight_version}, matchable(sequence));
}

bool SequenceMemory::grow(Sequence& sequence) { return allocate(pages_lacking(sequence), sequence.pages); }

void SequenceMemory::publish(Sequence& sequence, std::vector<PageId>& duplicates) {
  const int32_t whole = sequence.computed / page_size_;
  if (!options_.prefix_cache || !sequence.publishable || whole <= sequence.shared_pages) return;
  const auto count = static_cast<std::size_t>(whole);
  InsertResult inserted = cache_->insert({sequence.extra_key, sequence.weight_version},
                                         std::span(sequence.tokens).first(count * static_cast<std::size_t>(page_size_)),
                                         std::span(sequence.pages).first(count));
  cache_->lock(inserted.node);
  cache_->unlock(sequence.lock);
  sequence.lock = inserted.node;
  sequence.shared_pages = whole;
  std::ranges::copy(inserted.pages, sequence.pages.begin());
  duplicates.insert(duplicates.end(), inserted.duplicates.begin(), inserted.duplicates.end());
}

void SequenceMemory::release(Sequence& sequence, Publish publish_first) {
  std::vector<PageId> duplicates;
  if (publish_first == Publish::kYes) publish(sequence, duplicates);
  give_back(duplicates);
  give_back(std::span(sequence.pages).subspan(static_cast<std::size_t>(sequence.shared_pages)));
  cache_->unlock(sequence.lock);
  sequence.lock = nullptr;
  sequence.pages.clear();
  sequence.shared_pages = 0;
  sequence.computed = 0;
}

bool SequenceMemory::allocate(int32_t count, std::vector<PageId>& out) {
  if (count > available()) return false;
  if (count > pool_->free_count()) cache_->evict(count - pool_->free_count());
  return pool_->allocate(count, out);
}

// A page that is not held is a bug; it is logged here and repaired by the self-check when idle.
void SequenceMemory::give_back(std::span<const PageId> pages) {
  for (PageId page : pages) {
    const Status status = pool_->release(page, PageState::kHeld);
    if (!status.ok()) LOG_ERROR("kv pages: {}", status.to_string());
  }
}

std::vector<PageCopy> SequenceMemory::take_copies() { return {}; }

void SequenceMemory::return_copies(std::vector<PageCopy> copies) { CHECK(copies.empty()); }

KvEvents SequenceMemory::take_events() { return {}; }

int32_t SequenceMemory::flush(std::optional<uint64_t>) { return cache_->evict(page_count_); }

Status SequenceMemory::verify(bool idle) const {
  RETURN_IF_ERROR(pool_->verify());
  RETURN_IF_ERROR(cache_->verify());
  const PageBooks books = pool_->books();
  if (idle && (books.free() + books.cached() != books.all || cache_->locked_pages() != 0)) {
    return internal_error("idle, but {} and {} pages locked; wanted free + cached = all and none locked",
                          books.to_string(), cache_->locked_pages());
  }
  return ok_status();
}

void SequenceMemory::rebuild() {
  cache_.reset();
  pool_ = std::make_unique<PagePool>(page_count_);
  cache_ = std::make_unique<RadixCache>(*pool_, page_size_);
}

}  // namespace millrace
