#include "scheduler/memory.h"

#include "base/log.h"

namespace millrace {

SequenceMemory::SequenceMemory(int32_t page_count, int32_t page_size, bool prefix_cache)
    : page_count_(page_count), page_size_(page_size), prefix_cache_(prefix_cache) {
  rebuild();
}

bool SequenceMemory::attach(Sequence& sequence, uint64_t weight_version, int64_t reserve) {
  CHECK(sequence.pages.empty() && sequence.lock == nullptr && sequence.computed == 0);
  MatchResult match;
  if (prefix_cache_) match = cache_->match_prefix({sequence.extra_key, weight_version}, sequence.tokens);
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
  return true;
}

bool SequenceMemory::grow(Sequence& sequence) { return allocate(pages_lacking(sequence), sequence.pages); }

void SequenceMemory::publish(Sequence& sequence) {
  const int32_t whole = sequence.computed / page_size_;
  if (!prefix_cache_ || !sequence.publishable || whole <= sequence.shared_pages) return;
  const auto count = static_cast<std::size_t>(whole);
  InsertResult inserted = cache_->insert({sequence.extra_key, sequence.weight_version},
                                         std::span(sequence.tokens).first(count * static_cast<std::size_t>(page_size_)),
                                         std::span(sequence.pages).first(count));
  cache_->lock(inserted.node);
  cache_->unlock(sequence.lock);
  sequence.lock = inserted.node;
  sequence.shared_pages = whole;
  std::ranges::copy(inserted.pages, sequence.pages.begin());
  for (PageId page : inserted.duplicates) give_back(page);
}

void SequenceMemory::release(Sequence& sequence, Publish publish_first) {
  if (publish_first == Publish::kYes) publish(sequence);
  for (std::size_t i = static_cast<std::size_t>(sequence.shared_pages); i < sequence.pages.size(); ++i) {
    give_back(sequence.pages[i]);
  }
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
void SequenceMemory::give_back(PageId page) {
  const Status status = pool_->release(page, PageState::kHeld);
  if (!status.ok()) LOG_ERROR("kv pages: {}", status.to_string());
}

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
