// What is prefaulted, in which order and how far, as the kernel reports it (mincore); that no byte changes, also where
// another thread writes meanwhile (run under ThreadSanitizer too); and a kernel that cannot.
#include "runner/kv_prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

namespace millrace {
namespace {

constexpr int64_t kPageBytes = 256 << 10;
constexpr int64_t kPageSize = 64;  // so that 2048 tokens are 8 MiB of a buffer
constexpr int64_t kPages = 40;     // 10 MiB in a buffer
constexpr int64_t kSize = kPages * kPageBytes;
constexpr int kBuffers = 4;

class KvPrefaultTest : public testing::Test {
 protected:
  void SetUp() override {
    for (char*& buffer : buffers_) {
      void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(memory, MAP_FAILED);
      (void)::madvise(memory, kSize, MADV_NOHUGEPAGE);  // so that each small page counts for itself
      buffer = static_cast<char*>(memory);
    }
    for (int i = 0; i < kBuffers; i += 2) {
      kernels::KvLayer layer;
      layer.k = buffers_[i];
      layer.v = buffers_[i + 1];
      layer.page_count = kPages;
      layer.page_size = kPageSize;
      layer.page_stride_bytes = kPageBytes;
      layers_.push_back(layer);
    }
  }
  void TearDown() override {
    for (char* buffer : buffers_) ::munmap(buffer, kSize);
  }

  static std::vector<int32_t> using_page(int32_t page) { return {page, 0}; }
  // MiB of memory that the kernel has given to a buffer, and that they are the MiB from `begin` on.
  int64_t resident_mib(int buffer, int64_t begin_mib = 0) const {
    std::vector<unsigned char> resident(kSize / 4096);
    EXPECT_EQ(::mincore(buffers_[buffer], kSize, resident.data()), 0);
    int64_t count = 0, first = -1;
    for (std::size_t i = 0; i < resident.size(); ++i) {
      if ((resident[i] & 1) == 0) continue;
      if (first < 0) first = static_cast<int64_t>(i);
      ++count;
    }
    if (count > 0) {
      EXPECT_EQ(first, begin_mib * 256);
    }
    return count / 256;
  }

  std::array<char*, kBuffers> buffers_{};
  std::vector<kernels::KvLayer> layers_;
};

TEST_F(KvPrefaultTest, GoesAheadInAllBuffersAndStops) {
  KvPrefault prefault(layers_);
  for (int i = 0; i < kBuffers; ++i) {
    EXPECT_EQ(resident_mib(i), 0);
    EXPECT_TRUE(prefault.prefault(1));
    EXPECT_EQ(resident_mib(i), 2);
  }
  EXPECT_FALSE(prefault.prefault(1));
  int prefaults = 0;
  while (prefault.prefault(prefault.rows_ahead())) ++prefaults;
  EXPECT_EQ(prefaults, 3 * kBuffers);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 8);
  while (prefault.prefault(100)) ++prefaults;
  EXPECT_EQ(prefaults, 4 * kBuffers);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 10);
}

TEST_F(KvPrefaultTest, TheDistanceIsGivenInTokensAndBoundInBytes) {
  EXPECT_EQ(KvPrefault(layers_).rows_ahead(), 4);
  for (kernels::KvLayer& layer : layers_) layer.page_size = 4096;  // small tokens: one row holds enough of them
  EXPECT_EQ(KvPrefault(layers_).rows_ahead(), 1);
  for (kernels::KvLayer& layer : layers_) layer.page_size = 1;  // large ones: 512 MiB of a buffer, too much
  EXPECT_EQ(KvPrefault(layers_).rows_ahead(), 32);
}

TEST_F(KvPrefaultTest, GoesOnAboveTheHighestPageUsed) {
  KvPrefault prefault(layers_);
  prefault.add_used(using_page(10));  // in 2.5 to 2.75 MiB: the batch reaches up to 4
  for (int i = 0; i < kBuffers; ++i) EXPECT_TRUE(prefault.prefault(1));
  EXPECT_FALSE(prefault.prefault(1));
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i, 4), 2);
  prefault.add_used(using_page(3));  // lower ones change nothing
  EXPECT_FALSE(prefault.prefault(1));
  prefault.add_used(using_page(16));  // past 4 MiB
  EXPECT_TRUE(prefault.prefault(1));
  EXPECT_EQ(resident_mib(0, 4), 4);
  prefault.add_used(using_page(kPages - 1));
  EXPECT_FALSE(prefault.prefault(1));
  EXPECT_FALSE(prefault.prefault(100));
}

// Pages of 256 KiB: eight fill a row of 2 MiB, so with four buffers there is one prefault for every second page.
TEST_F(KvPrefaultTest, KeepsPaceWithTheStepsThatUsePages) {
  KvPrefault prefault(layers_);
  EXPECT_FALSE(prefault.prefault_in_step());
  int prefaults = 0;
  for (int32_t page = 0; page < kPages; ++page) {
    prefault.add_used(using_page(page));
    while (prefault.prefault_in_step()) ++prefaults;
    EXPECT_EQ(prefaults, std::min<int>((page + 1) / 2, 4 * kBuffers)) << page;
  }
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i, 2), 8);  // the first row was the steps' own
}

TEST_F(KvPrefaultTest, ALongPromptReachesItsRowsItself) {
  KvPrefault prefault(layers_);
  prefault.add_used(using_page(9));  // a quarter of the second row
  EXPECT_TRUE(prefault.prefault_in_step());
  EXPECT_FALSE(prefault.prefault_in_step());
  prefault.add_used(using_page(25));  // the third row and a quarter of the fourth
  EXPECT_TRUE(prefault.prefault_in_step());
  EXPECT_FALSE(prefault.prefault_in_step());
  EXPECT_EQ(resident_mib(0, 4), 4);  // 4 to 6 and 8 to 10 MiB
  EXPECT_EQ(resident_mib(1, 0), 0);
}

TEST_F(KvPrefaultTest, ChangesNoByte) {
  KvPrefault prefault(layers_);
  std::vector<std::string> before;
  for (char* buffer : buffers_) {
    for (int64_t at = 0; at < kSize; at += 512) buffer[at] = static_cast<char>(at / 512 * 7 + 1);
    before.emplace_back(buffer, kSize);
  }
  while (prefault.prefault(prefault.rows_ahead())) {
  }
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(std::memcmp(buffers_[i], before[i].data(), kSize), 0);
}

// An import of pages that another thread fills: the prefault must neither race with it nor bring an old byte back.
TEST_F(KvPrefaultTest, AnotherThreadMayWriteMeanwhile) {
  constexpr int64_t kEvery = 4096;
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  int64_t lost = 0;
  std::thread writer([&] {
    for (char value = 1; !stop; ++value, ++rounds) {
      for (int64_t at = 0; at < kSize; at += kEvery) buffers_[0][at] = value;
      for (int64_t at = 0; at < kSize; at += kEvery) lost += buffers_[0][at] != value;
    }
  });
  while (rounds < 20) {
    KvPrefault prefault(layers_);
    while (prefault.prefault(100)) {
    }
  }
  stop = true;
  writer.join();
  EXPECT_EQ(lost, 0);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 10);
}

TEST_F(KvPrefaultTest, AKernelThatCannotIsAskedOnce) {
  static int calls;
  calls = 0;
  KvPrefault prefault(layers_, [](char*, int64_t) { return ++calls, EINVAL; });
  EXPECT_FALSE(prefault.prefault(1));
  EXPECT_FALSE(prefault.prefault(100));
  prefault.add_used(using_page(10));
  EXPECT_FALSE(prefault.prefault_in_step());
  EXPECT_EQ(calls, 1);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 0);
}

TEST_F(KvPrefaultTest, WhatTheKernelHasNoMemoryForIsLeftToTheStep) {
  KvPrefault prefault(layers_, [](char*, int64_t) { return ENOMEM; });
  int prefaults = 0;
  while (prefault.prefault(2)) ++prefaults;
  EXPECT_EQ(prefaults, 2 * kBuffers);
}

// Buffers of small pools begin and end inside a system page.
TEST_F(KvPrefaultTest, RangesNeedNotBeAligned) {
  EXPECT_EQ(populate_pages(buffers_[0] + 100, 4096), 0);
  EXPECT_EQ(populate_pages(buffers_[1] + 4095, 1), 0);
  std::vector<unsigned char> resident(kSize / 4096);
  ASSERT_EQ(::mincore(buffers_[0], kSize, resident.data()), 0);
  EXPECT_EQ((resident[0] & 1) + (resident[1] & 1) + (resident[2] & 1), 2);
  ASSERT_EQ(::mincore(buffers_[1], kSize, resident.data()), 0);
  EXPECT_EQ((resident[0] & 1) + (resident[1] & 1), 1);
}

}  // namespace
}  // namespace millrace
