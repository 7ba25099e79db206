#include "kv/cache_tier.h"

#include "base/log.h"

namespace millrace {

// A page that is not cached is a bug; it is logged here and found again by verify().
void free_last_pages(PagePool& pool, std::vector<PageId>& pages, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Status released = pool.release(pages.back(), PageState::kCached);
    if (!released.ok()) LOG_ERROR("radix cache: {}", released.to_string());
    pages.pop_back();
  }
}

}  // namespace millrace
