// Random operations on the radix cache against a plain map: prefix of whole pages -> page and time of last use.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "kv/radix_cache.h"

namespace millrace {
namespace {

using Tokens = std::vector<int32_t>;

// What the cache must know, in the slowest and plainest form. One entry for each cached page.
class Model {
 public:
  struct Entry {
    PageId page;
    uint64_t last_use = 0;
    int locks = 0;
  };
  using Key = std::pair<int, Tokens>;  // namespace, all tokens up to the end of the page

  explicit Model(int32_t page_size) : page_size_(page_size) {}

  std::vector<PageId> match(int space, const Tokens& tokens, std::size_t usable_pages) {
    std::vector<PageId> pages;
    ++tick_;
    for (std::size_t n = 1; n <= usable_pages; ++n) {
      const auto it = entries_.find(key(space, tokens, n));
      if (it == entries_.end()) break;
      it->second.last_use = tick_;
      pages.push_back(it->second.page);
    }
    return pages;
  }

  void add(int space, const Tokens& tokens, const std::vector<PageId>& pages) {
    for (std::size_t n = 1; n <= pages.size(); ++n) {
      entries_.try_emplace(key(space, tokens, n), Entry{pages[n - 1], tick_, 0});
    }
  }

  void lock(int space, const Tokens& tokens, std::size_t pages, int by) {
    for (std::size_t n = 1; n <= pages; ++n) entries_.at(key(space, tokens, n)).locks += by;
  }

  int32_t locked() const {
    return static_cast<int32_t>(
        std::count_if(entries_.begin(), entries_.end(), [](auto& e) { return e.second.locks; }));
  }

  // The page that is evicted next: of the unlocked ones that no other continues, the least recently used.
  std::optional<PageId> evict_one() {
    auto victim = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      // Keys are ordered, so that a continuation stands right behind its prefix.
      const auto next = std::next(it);
      const bool continued = next != entries_.end() && next->first.first == it->first.first &&
                             next->first.second.size() > it->first.second.size() &&
                             std::equal(it->first.second.begin(), it->first.second.end(), next->first.second.begin());
      if (continued || it->second.locks > 0) continue;
      if (victim == entries_.end() || it->second.last_use < victim->second.last_use) victim = it;
    }
    if (victim == entries_.end()) return std::nullopt;
    const PageId page = victim->second.page;
    entries_.erase(victim);
    return page;
  }

  std::size_t size() const { return entries_.size(); }

 private:
  Key key(int space, const Tokens& tokens, std::size_t pages) const {
    const auto length = static_cast<std::ptrdiff_t>(pages) * page_size_;
    return {space, Tokens(tokens.begin(), tokens.begin() + length)};
  }

  int32_t page_size_;
  uint64_t tick_ = 0;
  std::map<Key, Entry> entries_;
};

class Property {
 public:
  Property(int32_t page_size, uint64_t seed)
      : page_size_(page_size), random_(seed), pool_(kPages), cache_(pool_, page_size), model_(page_size) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      switch (random_() % 8) {
        case 0:
        case 1:
        case 2:
          insert();
          break;
        case 3:
        case 4:
          match_and_lock();
          break;
        case 5:
        case 6:
          unlock();
          break;
        default:
          evict(static_cast<int32_t>(random_() % 4));
          break;
      }
      ASSERT_TRUE(pool_.books().balance());
      ASSERT_EQ(pool_.books().held(), 0);
      ASSERT_EQ(cache_.cached_pages(), static_cast<int32_t>(model_.size()));
      ASSERT_EQ(pool_.books().cached(), cache_.cached_pages());
      if (i % 64 == 0) {
        ASSERT_EQ(cache_.locked_pages(), model_.locked());
        ASSERT_TRUE(cache_.verify().ok()) << cache_.verify().to_string();
        ASSERT_TRUE(pool_.verify().ok());
      }
    }
  }

  void finish() {
    while (!locks_.empty()) unlock();
    evict(kPages);
    ASSERT_EQ(pool_.free_count(), kPages);
    ASSERT_EQ(cache_.node_count(), 0);
    ASSERT_TRUE(cache_.roots().empty());
  }

 private:
  static constexpr int32_t kPages = 48;
  struct Lock {
    RadixNode* node;
    int space;
    Tokens tokens;
    std::size_t pages;
  };

  // Few different tokens, so that prefixes meet often.
  Tokens tokens() {
    Tokens result(random_() % static_cast<uint64_t>(8 * page_size_) + 1);
    for (int32_t& token : result) token = random_() % 4 == 0 ? 1 : 0;
    return result;
  }
  CacheNamespace space(int number) const { return {number == 0 ? "" : "salt", 3}; }

  void insert() {
    const int number = static_cast<int>(random_() % 2);
    Tokens text = tokens();
    const std::size_t count = text.size() / static_cast<std::size_t>(page_size_);
    text.resize(count * static_cast<std::size_t>(page_size_));
    std::vector<PageId> pages;
    if (!pool_.allocate(static_cast<int32_t>(count), pages)) return evict(static_cast<int32_t>(count));
    const std::vector<PageId> known = model_.match(number, text, count);
    const InsertResult result = cache_.insert(space(number), text, pages);
    std::vector<PageId> expected = known;
    expected.insert(expected.end(), pages.begin() + static_cast<std::ptrdiff_t>(known.size()), pages.end());
    ASSERT_EQ(result.pages, expected);
    ASSERT_EQ(result.duplicates,
              std::vector<PageId>(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(known.size())));
    model_.add(number, text, expected);
    for (PageId page : result.duplicates) ASSERT_TRUE(pool_.release(page, PageState::kHeld).ok());
  }

  void match_and_lock() {
    const int number = static_cast<int>(random_() % 2);
    const Tokens text = tokens();
    const MatchResult result = cache_.match_prefix(space(number), text);
    ASSERT_EQ(result.pages, model_.match(number, text, (text.size() - 1) / static_cast<std::size_t>(page_size_)));
    ASSERT_EQ(result.node == nullptr, result.pages.empty());
    if (locks_.size() >= 6) return;
    cache_.lock(result.node);
    model_.lock(number, text, result.pages.size(), 1);
    locks_.push_back({result.node, number, text, result.pages.size()});
  }

  void unlock() {
    if (locks_.empty()) return;
    std::swap(locks_[random_() % locks_.size()], locks_.back());
    const Lock lock = locks_.back();
    locks_.pop_back();
    cache_.unlock(lock.node);
    model_.lock(lock.space, lock.tokens, lock.pages, -1);
  }

  void evict(int32_t count) {
    int32_t expected = 0;
    std::vector<PageId> victims;
    for (; expected < count; ++expected) {
      const std::optional<PageId> page = model_.evict_one();
      if (!page) break;
      victims.push_back(*page);
    }
    ASSERT_EQ(cache_.evict(count), expected);
    for (PageId page : victims) ASSERT_EQ(pool_.state(page), PageState::kFree) << "page " << page.value;
  }

  int32_t page_size_;
  std::mt19937_64 random_;
  PagePool pool_;
  RadixCache cache_;
  Model model_;
  std::vector<Lock> locks_;
};

TEST(RadixProperty, EqualsAPlainMapForManyRandomOperations) {
  uint64_t seed = 1;
  for (int32_t page_size : {1, 2, 3, 16}) {
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE("page size " + std::to_string(page_size) + ", seed " + std::to_string(seed));
      Property property(page_size, seed++);
      property.run(12000);
      property.finish();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace millrace
