// SequenceMemory by itself: what a scheduler with batches in flight leans on.
#include "scheduler/memory.h"

#include <gtest/gtest.h>

#include <numeric>

namespace millrace {
namespace {

constexpr int32_t kPageSize = 4;

Sequence sequence_of(int32_t length, int32_t first = 1) {
  Sequence sequence;
  sequence.tokens.resize(static_cast<std::size_t>(length));
  std::iota(sequence.tokens.begin(), sequence.tokens.end(), first);
  sequence.prompt_length = length;
  return sequence;
}

MemoryOptions with_host(int32_t host_pages, WritePolicy policy = WritePolicy::kWriteThrough) {
  MemoryOptions options;
  options.host_pages = host_pages;
  options.cache.write_policy = policy;
  return options;
}

class SequenceMemoryTest : public ::testing::Test {
 protected:
  // A sequence that computed all of `length` tokens, published them and left.
  static void run_through(SequenceMemory& memory, int32_t length, int32_t first = 1) {
    Sequence sequence = sequence_of(length, first);
    ASSERT_TRUE(memory.attach(sequence, 0));
    sequence.computed = length;
    memory.release(sequence, Publish::kYes);
    EXPECT_TRUE(memory.verify(false).ok()) << memory.verify(false).to_string();
  }
  static void expect_idle(const SequenceMemory& memory) {
    EXPECT_TRUE(memory.verify(true).ok()) << memory.verify(true).to_string();
  }
};

TEST_F(SequenceMemoryTest, DuplicatesStayHeldUntilTheyAreGivenBack) {
  SequenceMemory memory(16, kPageSize, MemoryOptions{});
  Sequence a = sequence_of(10);
  Sequence b = sequence_of(10);
  ASSERT_TRUE(memory.attach(a, 0) && memory.attach(b, 0));
  const std::vector<PageId> own = b.pages.pages();
  std::vector<PageId> duplicates;
  a.computed = b.computed = 10;
  memory.publish(a, duplicates);
  EXPECT_TRUE(duplicates.empty());
  memory.publish(b, duplicates);
  EXPECT_EQ(duplicates, std::vector(own.begin(), own.begin() + 2));
  EXPECT_EQ(b.pages[0], a.pages[0]);
  EXPECT_EQ(b.pages[1], a.pages[1]);
  EXPECT_EQ(b.pages[2], own[2]);
  for (PageId page : duplicates) EXPECT_EQ(memory.pool().state(page), PageState::kHeld);
  EXPECT_EQ(memory.books().held(), 4);  // each one's last page, and the two
  memory.release(duplicates);
  EXPECT_EQ(memory.books().held(), 2);
  memory.release(a, Publish::kYes);
  memory.release(b, Publish::kYes);
  expect_idle(memory);
}

// Chunk by chunk, each time only what is new; others' cached pages in the middle are taken over.
TEST_F(SequenceMemoryTest, PublishingGoesOnFromWhatIsShared) {
  SequenceMemory memory(32, kPageSize, MemoryOptions{});
  Sequence slow = sequence_of(40);
  ASSERT_TRUE(memory.attach(slow, 0));
  std::vector<PageId> duplicates;
  slow.computed = 9;
  memory.publish(slow, duplicates);
  EXPECT_EQ(slow.shared_pages, 2);
  run_through(memory, 24);
  slow.computed = 40;
  memory.publish(slow, duplicates);
  EXPECT_EQ(slow.shared_pages, 10);
  EXPECT_EQ(duplicates.size(), 4u);  // pages 2 to 5 came from the other
  memory.release(duplicates);
  EXPECT_EQ(memory.books().cached(), 10);
  memory.release(slow, Publish::kYes);
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, MatchLimitAndPeek) {
  SequenceMemory memory(32, kPageSize, MemoryOptions{});
  run_through(memory, 40);
  const std::pair<int32_t, int32_t> table[] = {{INT32_MAX, 36}, {39, 36}, {36, 36}, {35, 32}, {4, 4}, {3, 0}, {0, 0}};
  for (const auto& [limit, cached] : table) {
    Sequence sequence = sequence_of(40);
    sequence.match_limit = limit;
    EXPECT_EQ(memory.cached_tokens(sequence), cached) << limit;
    ASSERT_TRUE(memory.attach(sequence, 0));
    EXPECT_EQ(sequence.computed, cached) << limit;
    memory.release(sequence, Publish::kNo);
  }
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, AVersionBeginsWithNothingCached) {
  SequenceMemory memory(32, kPageSize, MemoryOptions{});
  const Sequence sequence = sequence_of(40);
  for (const uint64_t version : {3, 2, 3}) {
    memory.set_weight_version(version);
    EXPECT_EQ(memory.cached_tokens(sequence), 0) << version;
    run_through(memory, 40);
    memory.set_weight_version(version);
    EXPECT_EQ(memory.cached_tokens(sequence), 36) << version;
  }
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, AVersionBeginsWithoutTheLeasesOfItsNumber) {
  SequenceMemory memory(32, kPageSize, MemoryOptions{});
  memory.set_weight_version(3);
  run_through(memory, 40);
  const CacheNamespace space{sequence_of(40).extra_key, 3};
  const auto prefix = memory.lock_prefix(space, sequence_of(40).tokens);
  ASSERT_TRUE(memory.set_lease(1, prefix.node, static_cast<int32_t>(prefix.pages.size())));
  memory.unlock_prefix(prefix.node);
  memory.set_weight_version(2);
  EXPECT_TRUE(memory.locks_version(3));
  memory.set_weight_version(3);
  EXPECT_FALSE(memory.locks_version(3));
  EXPECT_EQ(memory.cached_tokens(sequence_of(40)), 0);
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, WhatWasEvictedComesBackFromTheHost) {
  for (WritePolicy policy : {WritePolicy::kWriteThrough, WritePolicy::kWriteBack}) {
    SequenceMemory memory(10, kPageSize, with_host(20, policy));
    run_through(memory, 40);
    run_through(memory, 40, 1000);  // pushes the first out
    const auto to_host = memory.take_copies();
    EXPECT_FALSE(to_host.empty());
    Sequence sequence = sequence_of(40);
    EXPECT_EQ(memory.cached_tokens(sequence), 36);
    ASSERT_TRUE(memory.attach(sequence, 0));
    EXPECT_EQ(sequence.computed, 36);
    EXPECT_EQ(sequence.host_tokens, 36);
    EXPECT_EQ(sequence.shared_pages, 9);
    const auto copies = memory.take_copies();
    std::vector<PageId> filled;
    for (const PageCopy& copy : copies) {
      if (copy.direction == CopyDirection::kFromHost) filled.push_back(copy.page);
    }
    EXPECT_EQ(filled, sequence.pages.pages(0, 9));
    EXPECT_TRUE(memory.verify(false).ok());
    memory.release(sequence, Publish::kNo);
    expect_idle(memory);
  }
}

TEST_F(SequenceMemoryTest, FewHostTokensAreComputedAgain) {
  MemoryOptions options = with_host(20);
  options.cache.min_load_tokens = 13;
  SequenceMemory memory(10, kPageSize, options);
  run_through(memory, 13);  // three pages, 12 tokens
  run_through(memory, 40, 1000);
  Sequence sequence = sequence_of(13);
  EXPECT_EQ(memory.cached_tokens(sequence), 0);
  ASSERT_TRUE(memory.attach(sequence, 0));
  EXPECT_EQ(sequence.host_tokens, 0);
  EXPECT_EQ(sequence.computed, 0);
  sequence.computed = 13;
  memory.release(sequence, Publish::kYes);
  EXPECT_EQ(memory.cached_tokens(sequence_of(14)), 12);
  expect_idle(memory);
}

// An attach that does not fit leaves nothing behind: no lock, no page, no copy from the host.
TEST_F(SequenceMemoryTest, AnAttachThatDoesNotFitChangesNothing) {
  SequenceMemory memory(10, kPageSize, with_host(20));
  run_through(memory, 20);
  Sequence other = sequence_of(30, 500);
  ASSERT_TRUE(memory.attach(other, 0));
  memory.take_copies();
  Sequence sequence = sequence_of(20);
  EXPECT_FALSE(memory.attach(sequence, 0));
  EXPECT_TRUE(sequence.pages.empty() && sequence.lock == nullptr && sequence.computed == 0);
  EXPECT_TRUE(memory.take_copies().empty());
  EXPECT_EQ(memory.cache().locked_pages(), 0);
  memory.release(other, Publish::kNo);
  ASSERT_TRUE(memory.attach(sequence, 0));
  memory.release(sequence, Publish::kNo);
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, FlushDropsOldWeightsAndRebuildTellsRouters) {
  MemoryOptions options = with_host(20);
  options.cache.events = true;
  SequenceMemory memory(20, kPageSize, options);
  run_through(memory, 16);
  EXPECT_EQ(memory.flush(0), 0);
  EXPECT_EQ(memory.flush(1), 4);
  EXPECT_EQ(memory.cached_tokens(sequence_of(16)), 0);
  run_through(memory, 16);
  memory.take_events();
  EXPECT_EQ(memory.counters().backed_up, 8u);
  memory.rebuild();
  EXPECT_EQ(memory.counters().backed_up, 8u);
  const KvEvents events = memory.take_events();
  ASSERT_EQ(events.events.size(), 1u);
  EXPECT_EQ(events.events[0].kind, KvEventKind::kCleared);
  EXPECT_EQ(memory.books().free(), 20);
  EXPECT_EQ(memory.host_pool()->free_count(), 20);
  expect_idle(memory);
}

TEST_F(SequenceMemoryTest, OptionsAreValidated) {
  MemoryOptions options;
  options.host_pages = -1;
  EXPECT_EQ(validate(options).message(), "host_pages is -1; wanted an integer >= 0");
  options.host_pages = 0;
  options.cache.min_load_tokens = 0;
  EXPECT_EQ(validate(options).message(), "min_load_tokens is 0; wanted an integer >= 1");
}

// The cache off: nothing stays, no host tier.
TEST_F(SequenceMemoryTest, OffMeansOff) {
  MemoryOptions options = with_host(8);
  options.prefix_cache = false;
  SequenceMemory memory(8, kPageSize, options);
  EXPECT_EQ(memory.host_pool(), nullptr);
  run_through(memory, 16);
  EXPECT_EQ(memory.books().free(), 8);
  EXPECT_EQ(memory.cached_tokens(sequence_of(16)), 0);
}

}  // namespace
}  // namespace millrace
