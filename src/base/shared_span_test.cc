// What a span of a growing array holds never changes, whatever becomes of the array, also while another thread reads it
// (run under ThreadSanitizer too); and nothing is copied where nothing must be.
#include "base/shared_span.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/bounded_queue.h"
#include "base/rng.h"

namespace millrace {
namespace {

using Values = std::vector<int>;

Values values_of(const SharedSpan<int>& span) { return {span.begin(), span.end()}; }

TEST(SharedSpan, TakesAVectorOverWithoutACopy) {
  Values values = {1, 2, 3};
  const int* data = values.data();
  const SharedSpan<int> span = std::move(values);
  EXPECT_EQ(span.data(), data);
  const SharedSpan<int> other = span;
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(other, (SharedSpan<int>{1, 2, 3}));
  EXPECT_FALSE(other == (SharedSpan<int>{1, 2}));
  EXPECT_EQ(other.back(), 3);
  EXPECT_TRUE(SharedSpan<int>().empty() && SharedSpan<int>(Values()).empty());
}

TEST(AppendArray, SpansOfItShareItsMemoryWhileItGrows) {
  AppendArray<int> array;
  int copies = 0;
  SharedSpan<int> last;
  for (int i = 0; i < 1000; ++i) {
    array.push_back(i);
    const SharedSpan<int> now = array.share(array.size());
    copies += !last.empty() && now.data() != last.data();
    last = now;
  }
  EXPECT_EQ(copies, 6);  // 16, 32, ... 512 were full
  EXPECT_EQ(last.size(), 1000u);
}

TEST(AppendArray, OutlivesTheArray) {
  SharedSpan<int> span;
  {
    AppendArray<int> array;
    for (int i = 0; i < 20; ++i) array.push_back(i);
    span = array.share(18);
  }
  EXPECT_EQ(span.back(), 17);
}

TEST(AppendArray, AChangeOfASharedElementGoesToFreshMemory) {
  AppendArray<int> array;
  for (int i = 0; i < 4; ++i) array.push_back(i);
  const SharedSpan<int> before = array.share(2);
  array.set(3, 30);  // not shared: in place
  EXPECT_EQ(array.share(2).data(), before.data());
  array.set(1, 10);
  EXPECT_NE(array.share(2).data(), before.data());
  EXPECT_EQ(values_of(before), (Values{0, 1}));
  EXPECT_EQ(values_of(array.share(4)), (Values{0, 10, 2, 30}));
}

TEST(AppendArray, WhatWasCutOffIsNotWrittenOver) {
  AppendArray<int> array;
  for (int i = 0; i < 4; ++i) array.push_back(i);
  const SharedSpan<int> before = array.share(4);
  array.truncate(2);
  array.push_back(20);
  array.push_back(30);
  EXPECT_EQ(values_of(before), (Values{0, 1, 2, 3}));
  EXPECT_EQ(values_of(array.share(4)), (Values{0, 1, 20, 30}));
}

// Random walks, each against a plain vector: every span ever taken still holds what it held.
TEST(AppendArray, SpansNeverChange) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    AppendArray<int> array;
    Values model;
    std::vector<std::pair<SharedSpan<int>, Values>> taken;
    for (uint64_t i = 0; i < 200; ++i) {
      const PhiloxBlock random = philox(seed, i);
      const std::size_t at = model.empty() ? 0 : random[1] % model.size();
      switch (random[0] % 8) {
        case 0:
          array.truncate(at), model.resize(at);
          break;
        case 1:
          if (!model.empty()) array.set(at, -1), model[at] = -1;
          break;
        case 2:
          taken.emplace_back(array.share(at), Values(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(at)));
          break;
        default:
          array.push_back(static_cast<int>(i)), model.push_back(static_cast<int>(i));
      }
      ASSERT_TRUE(std::ranges::equal(array.span(), model));
    }
    for (const auto& [span, values] : taken) ASSERT_EQ(values_of(span), values);
  }
}

TEST(AppendArray, IsReadElsewhereWhileItGrows) {
  BoundedQueue<SharedSpan<int>> queue(2000);
  int64_t wrong = 0;
  std::thread reader([&] {
    while (const auto span = queue.pop(-1)) {
      for (std::size_t i = 0; i < span->size(); ++i) wrong += (*span)[i] != static_cast<int>(i);
    }
  });
  AppendArray<int> array;
  for (int i = 0; i < 2000; ++i) {
    array.push_back(i);
    ASSERT_TRUE(queue.push(array.share(array.size())).ok());
  }
  queue.close();
  reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace millrace
