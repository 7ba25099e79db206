#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace millrace {
namespace {

TEST(PagePool, AllocationIsAllOrNothingAndStartsAtPageZero) {
  PagePool pool(4);
  std::vector<PageId> pages;
  EXPECT_FALSE(pool.allocate(5, pages));
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.free_count(), 4);
  ASSERT_TRUE(pool.allocate(3, pages));
  EXPECT_EQ(pages, (std::vector<PageId>{PageId{0}, PageId{1}, PageId{2}}));
  EXPECT_FALSE(pool.allocate(2, pages));
  EXPECT_EQ(pool.books().held(), 3);
  EXPECT_TRUE(pool.allocate(0, pages));
}

TEST(PagePool, DoubleFreeIsAnErrorAndChangesNothing) {
  PagePool pool(2);
  std::vector<PageId> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  EXPECT_TRUE(pool.release(pages[0], PageState::kHeld).ok());
  const Status again = pool.release(pages[0], PageState::kHeld);
  EXPECT_EQ(again.code(), StatusCode::kInternal);
  EXPECT_EQ(again.message(), "page 0 is free; wanted held");
  EXPECT_EQ(pool.free_count(), 2);
  EXPECT_TRUE(pool.verify().ok());
}

TEST(PagePool, PagesOutOfRangeAreRefused) {
  PagePool pool(2);
  for (int32_t page : {-1, 2, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(pool.contains(PageId{page}));
    EXPECT_EQ(pool.release(PageId{page}, PageState::kHeld).code(), StatusCode::kInternal);
    EXPECT_EQ(pool.move(PageId{page}, PageState::kHeld, PageState::kCached).code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(pool.verify().ok());
}

TEST(PagePool, AMoveNamesTheStateItLeaves) {
  PagePool pool(1);
  std::vector<PageId> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  const PageId page = pages[0];
  EXPECT_FALSE(pool.move(page, PageState::kCached, PageState::kHeld).ok());
  EXPECT_TRUE(pool.move(page, PageState::kHeld, PageState::kCached).ok());
  EXPECT_FALSE(pool.release(page, PageState::kHeld).ok());
  EXPECT_EQ(pool.books().to_string(), "free 0 + held 0 + cached 1 + importing 0 = 1 of 1");
  EXPECT_TRUE(pool.move(page, PageState::kCached, PageState::kImporting).ok());
  EXPECT_FALSE(pool.release(page, PageState::kCached).ok());
  EXPECT_TRUE(pool.release(page, PageState::kImporting).ok());
  EXPECT_EQ(pool.books().free(), 1);
}

// Against the simplest model: a set of held and a set of cached pages.
TEST(PagePool, BooksBalanceAfterEachOfManyRandomOperations) {
  PagePool pool(37);
  std::mt19937_64 random(1);
  std::set<int32_t> held;
  std::set<int32_t> cached;
  const auto pick = [&](std::set<int32_t>& from) { return *std::next(from.begin(), random() % from.size()); };
  for (int i = 0; i < 100000; ++i) {
    const auto operation = random() % 4;
    if (operation == 0) {
      std::vector<PageId> pages;
      const int32_t want = static_cast<int32_t>(random() % 6);
      const bool fits = want + held.size() + cached.size() <= 37;
      ASSERT_EQ(pool.allocate(want, pages), fits);
      for (PageId page : pages) ASSERT_TRUE(held.insert(page.value).second && !cached.contains(page.value));
    } else if (operation == 1 && !held.empty()) {
      const int32_t page = pick(held);
      held.erase(page);
      ASSERT_TRUE(pool.release(PageId{page}, PageState::kHeld).ok());
    } else if (operation == 2 && !held.empty()) {
      const int32_t page = pick(held);
      held.erase(page);
      cached.insert(page);
      ASSERT_TRUE(pool.move(PageId{page}, PageState::kHeld, PageState::kCached).ok());
    } else if (operation == 3 && !cached.empty()) {
      const int32_t page = pick(cached);
      cached.erase(page);
      ASSERT_TRUE(pool.release(PageId{page}, PageState::kCached).ok());
    }
    ASSERT_TRUE(pool.books().balance());
    ASSERT_EQ(pool.books().held(), static_cast<int32_t>(held.size()));
    ASSERT_EQ(pool.books().cached(), static_cast<int32_t>(cached.size()));
    if (i % 100 == 0) {
      ASSERT_TRUE(pool.verify().ok());
    }
  }
}

TEST(PagePoolDeathTest, AFreePageHasNoOwner) {
  PagePool pool(1);
  EXPECT_DEATH((void)pool.release(PageId{0}, PageState::kFree), "kFree");
  EXPECT_DEATH((void)pool.state(PageId{1}), "contains");
}

}  // namespace
}  // namespace millrace
