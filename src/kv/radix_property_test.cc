// A million random operations on the radix cache against a plain map (testing/map_model.h): all strategies, page sizes
// and write policies. The bytes are played too: each page, of the pool or of the host tier, holds the number of the
// prefix that was written to it last; copies are carried out when a batch is submitted, in order, before its rows are
// written. So a page that is reused too early, or a copy that is noted too late, is found as a wrong number.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "kv/radix_cache.h"
#include "kv/testing/map_model.h"

namespace millrace {
namespace {

using testing::MapModel;
using testing::Prefix;
using Tokens = std::vector<int32_t>;

struct Case {
  EvictionStrategy eviction;
  int32_t page_size;
  int32_t host_pages;  // 0: no host tier
  WritePolicy write_policy;
  uint64_t seed;
};

class Property {
 public:
  explicit Property(const Case& one)
      : page_size_(one.page_size),
        options_{one.eviction, one.write_policy, 1, one.seed % 5 == 0},
        random_(one.seed),
        pool_(kPages),
        host_pool_(std::max(1, one.host_pages)),
        cache_(pool_, page_size_, options_, one.host_pages > 0 ? &host_pool_ : nullptr),
        model_(options_, one.host_pages),
        bytes_(kPages, 0),
        host_bytes_(static_cast<std::size_t>(host_pool_.page_count()), 0) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      one_operation();
      // What is counted, after each.
      ASSERT_TRUE(pool_.books().balance() && host_pool_.books().balance());
      ASSERT_EQ(pool_.books().held(), 0);
      ASSERT_EQ(host_pool_.books().held(), 0);
      ASSERT_EQ(pool_.books().cached(), model_.pool_count());
      ASSERT_EQ(host_pool_.books().cached(), model_.host_count());
      ASSERT_EQ(cache_.cached_pages(), model_.pool_count());
      ASSERT_EQ(cache_.host_pages(), model_.host_count());
      if (i % 16 == 0) expect_same_peek(random_path());
      if (i % 512 == 0) verify_all();
    }
  }

  void finish() {
    verify_all();
    while (!locks_.empty()) unlock();
    ASSERT_EQ(cache_.drop_unlocked(), model_.pool_count());
    ASSERT_EQ(pool_.free_count(), kPages);
    ASSERT_EQ(host_pool_.free_count(), host_pool_.page_count());
    ASSERT_EQ(cache_.node_count(), 0);
    ASSERT_TRUE(cache_.roots().empty());
    ASSERT_TRUE(cache_.verify().ok());
  }

 private:
  static constexpr int32_t kPages = 40;
  static constexpr std::size_t kMaxLocks = 5;
  static constexpr Prefix kFirstSpace = 16;  // 16, 17, 18: never the number of a page

  struct Lock {
    RadixNode* node;
    std::vector<Prefix> path;
    std::vector<PageId> pages;
  };

  void one_operation() {
    switch (random_() % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
        return insert();
      case 4:
      case 5:
      case 6:
        return attach();
      case 7:
      case 8:
        return go_on();
      case 9:
      case 10:
      case 11:
        return unlock();
      case 12:
      case 13:
        return evict(static_cast<int32_t>(random_() % 5));
      case 14:
        return submit_batch({}, {});
      default:
        if (random_() % 16 == 0) drop();
        return refuse_batch();
    }
  }

  // ---- prefixes and their tokens ----

  std::vector<Prefix> random_path() {
    Prefix prefix = kFirstSpace + random_() % 3;
    std::vector<Prefix> path(random_() % 9);
    for (Prefix& next : path) next = prefix = prefix << 4 | (random_() % 4 == 0 ? 2 + random_() % 2 : 1);
    return path;
  }

  static CacheNamespace space(const std::vector<Prefix>& path) {
    Prefix number = path.empty() ? kFirstSpace : path.front() >> 4;
    number -= kFirstSpace;
    return {number == 1 ? "salt" : "", number == 2 ? 4u : 3u};
  }

  // Pages differ in their first or in their last token only.
  Tokens tokens(const std::vector<Prefix>& path) const {
    Tokens result;
    for (Prefix prefix : path) {
      const auto number = static_cast<int32_t>(prefix & 15);
      const std::size_t begin = result.size();
      result.resize(begin + static_cast<std::size_t>(page_size_), 7);
      (number % 2 == 0 ? result.back() : result[begin]) = number;
    }
    return result;
  }

  // All pages of the path may match: another token follows.
  Tokens query(const std::vector<Prefix>& path) {
    Tokens result = tokens(path);
    result.resize(result.size() + 1 + random_() % static_cast<uint64_t>(page_size_), 99);
    return result;
  }

  // ---- bytes ----

  // A batch: its copies, then what its rows write. Afterwards every locked path reads what it should.
  void submit_batch(const std::vector<PageId>& pages, const std::vector<Prefix>& written) {
    for (const PageCopy& copy : cache_.take_copies()) {
      uint64_t& in_pool = bytes_.at(static_cast<std::size_t>(copy.page.value));
      uint64_t& on_host = host_bytes_.at(static_cast<std::size_t>(copy.host_page.value));
      if (copy.direction == CopyDirection::kToHost) {
        on_host = in_pool;
      } else {
        in_pool = on_host;
      }
    }
    for (std::size_t i = 0; i < pages.size(); ++i) bytes_.at(static_cast<std::size_t>(pages[i].value)) = written[i];
    for (const Lock& lock : locks_) expect_bytes(lock.pages, lock.path);
  }

  // A batch that submit() refused. More was decided before its copies came back.
  void refuse_batch() {
    std::vector<PageCopy> copies = cache_.take_copies();
    evict(static_cast<int32_t>(random_() % 5));
    attach();
    cache_.return_copies(std::move(copies));
  }

  void expect_bytes(const std::vector<PageId>& pages, const std::vector<Prefix>& path) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(bytes_.at(static_cast<std::size_t>(pages[i].value)), path[i]) << "page " << pages[i].value;
    }
  }

  // ---- operations ----

  bool allocate(std::size_t count, std::vector<PageId>& pages) {
    const auto wanted = static_cast<int32_t>(count);
    if (wanted > pool_.free_count()) evict(wanted - pool_.free_count());
    return pool_.allocate(wanted, pages);
  }

  // Computes `path` from its `known`-th page on, and inserts it. `below` is the locked node where that begins.
  InsertResult compute_and_insert(const std::vector<Prefix>& path, std::size_t known, RadixNode* below) {
    InsertResult result;
    const std::vector<Prefix> rest(path.begin() + static_cast<std::ptrdiff_t>(known), path.end());
    std::vector<PageId> pages;
    if (!allocate(rest.size(), pages)) return result;
    submit_batch(pages, rest);
    const int priority = static_cast<int>(random_() % 3) - 1;
    const MapModel::Found found = model_.peek(path);
    result = cache_.insert(space(path), tokens(rest), pages, {.priority = priority, .below = below});
    model_.insert(path, known, priority);
    EXPECT_EQ(result.pages.size(), rest.size());
    const std::size_t duplicates = found.pool - std::min(known, found.pool);
    EXPECT_EQ(result.duplicates, std::vector(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(duplicates)));
    expect_bytes(result.pages, rest);
    for (PageId page : result.duplicates) EXPECT_TRUE(pool_.release(page, PageState::kHeld).ok());
    return result;
  }

  void insert() {
    const std::vector<Prefix> path = random_path();
    if (!path.empty()) compute_and_insert(path, 0, nullptr);
  }

  // What SequenceMemory::attach does, loading or not.
  void attach() {
    const std::vector<Prefix> path = random_path();
    const MatchResult match = cache_.match_prefix(space(path), query(path));
    const MapModel::Found found = model_.match(path);
    ASSERT_EQ(match.pages.size(), found.pool);
    ASSERT_EQ(static_cast<std::size_t>(match.host_pages), found.host);
    ASSERT_EQ(match.node == nullptr, found.pool == 0);
    ASSERT_EQ(match.host_node == nullptr, found.host == 0);
    if (locks_.size() >= kMaxLocks) return;
    const bool load = found.host > 0 && random_() % 4 != 0;
    Lock lock{load ? match.host_node : match.node, path, match.pages};
    lock.path.resize(found.pool + (load ? found.host : 0));
    if (lock.node == nullptr) return;
    cache_.lock(lock.node);
    model_.lock(lock.path, 1);
    if (load && !allocate(found.host, lock.pages)) {
      cache_.unlock(lock.node);
      return model_.lock(lock.path, -1);
    }
    if (load) {
      cache_.load(lock.node, std::span(lock.pages).subspan(found.pool));
      model_.load(lock.path);
    }
    const int priority = static_cast<int>(random_() % 3) - 1;
    cache_.count_use(lock.node, priority);
    model_.count_use(lock.path, priority);
    locks_.push_back(std::move(lock));
  }

  // A sequence computes more and publishes it: below its lock, which then moves down.
  void go_on() {
    if (locks_.empty()) return;
    const std::size_t which = random_() % locks_.size();
    std::vector<Prefix> path = locks_[which].path;
    const std::size_t known = path.size();
    for (uint64_t more = random_() % 4; more > 0 && path.size() < 8; --more) {
      path.push_back(path.back() << 4 | (1 + random_() % 3));
    }
    if (path.size() == known) return;
    const InsertResult result = compute_and_insert(path, known, locks_[which].node);
    if (result.pages.empty()) return;
    cache_.lock(result.node);
    model_.lock(path, 1);
    cache_.unlock(locks_[which].node);
    model_.lock(locks_[which].path, -1);
    Lock& lock = locks_[which];
    lock.pages.insert(lock.pages.end(), result.pages.begin(), result.pages.end());
    lock.node = result.node;
    lock.path = path;
  }

  void unlock() {
    if (locks_.empty()) return;
    std::swap(locks_[random_() % locks_.size()], locks_.back());
    const Lock lock = locks_.back();
    locks_.pop_back();
    cache_.unlock(lock.node);
    model_.lock(lock.path, -1);
  }

  void evict(int32_t count) { ASSERT_EQ(cache_.evict(count), model_.evict(count)); }

  void drop() {
    if (random_() % 2 == 0) {
      ASSERT_EQ(cache_.drop_unlocked(), model_.drop([](Prefix) { return true; }));
    } else {
      // The third namespace has weights 4, the others 3.
      const auto is_old = [](Prefix prefix) {
        while (prefix >> 4 >= kFirstSpace) prefix >>= 4;
        return prefix != kFirstSpace + 2;
      };
      ASSERT_EQ(cache_.drop_unlocked(4), model_.drop(is_old));
    }
  }

  void expect_same_peek(const std::vector<Prefix>& path) {
    const PeekResult peek = cache_.peek(space(path), query(path));
    const MapModel::Found found = model_.peek(path);
    ASSERT_EQ(static_cast<std::size_t>(peek.pages), found.pool);
    ASSERT_EQ(static_cast<std::size_t>(peek.host_pages), found.host);
  }

  void verify_all() {
    ASSERT_EQ(cache_.locked_pages(), model_.locked_count());
    ASSERT_TRUE(cache_.verify().ok()) << cache_.verify().to_string();
    ASSERT_TRUE(pool_.verify().ok() && host_pool_.verify().ok());
    for (const auto& [prefix, entry] : model_.entries()) {
      std::vector<Prefix> path;
      for (Prefix p = prefix; p >= 16 * kFirstSpace; p >>= 4) path.insert(path.begin(), p);
      expect_same_peek(path);
    }
    if (options_.events) cache_.take_events();
  }

  int32_t page_size_;
  CacheOptions options_;
  std::mt19937_64 random_;
  PagePool pool_;
  PagePool host_pool_;
  RadixCache cache_;
  MapModel model_;
  std::vector<uint64_t> bytes_;
  std::vector<uint64_t> host_bytes_;
  std::vector<Lock> locks_;
};

class RadixProperty : public ::testing::TestWithParam<EvictionStrategy> {};

TEST_P(RadixProperty, EqualsAPlainMapForManyRandomOperations) {
  constexpr int kRounds = 12;
  constexpr int kOperations = 12000;  // 7 strategies * 12 rounds * 12,000 = 1,008,000
  const int32_t page_sizes[] = {1, 3, 16};
  for (int round = 0; round < kRounds; ++round) {
    const int tier = round / 3;
    Case one{};
    one.eviction = GetParam();
    one.page_size = page_sizes[round % 3];
    one.host_pages = tier == 3 ? 0 : round % 2 == 0 ? 60 : 12;  // more and less than the pool
    one.write_policy = static_cast<WritePolicy>(tier % 3);
    one.seed = static_cast<uint64_t>(GetParam()) * 100 + static_cast<uint64_t>(round) + 1;
    SCOPED_TRACE(std::string(eviction_strategy_name(one.eviction)) + ", " + write_policy_name(one.write_policy) +
                 ", page size " + std::to_string(one.page_size) + ", host pages " + std::to_string(one.host_pages) +
                 ", seed " + std::to_string(one.seed));
    Property property(one);
    property.run(kOperations);
    property.finish();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, RadixProperty,
                         ::testing::Values(EvictionStrategy::kLru, EvictionStrategy::kLfu, EvictionStrategy::kFifo,
                                           EvictionStrategy::kMru, EvictionStrategy::kFilo, EvictionStrategy::kPriority,
                                           EvictionStrategy::kSlru),
                         [](const auto& info) { return eviction_strategy_name(info.param); });

}  // namespace
}  // namespace millrace
