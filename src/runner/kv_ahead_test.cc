// What is touched, in which order and how far, seen in the system's own books (mincore), and that no byte changes.
#include "runner/kv_ahead.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace millrace {
namespace {

constexpr int64_t kPageBytes = 256 << 10;
constexpr int64_t kPageSize = 64;  // so that 2048 tokens are 8 MiB of a buffer
constexpr int64_t kPages = 40;     // 10 MiB in a buffer
constexpr int64_t kSize = kPages * kPageBytes;
constexpr int kBuffers = 4;

class KvAheadTest : public testing::Test {
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

  static Batch using_page(int32_t page) {
    Batch batch;
    batch.sequences.push_back({.request = {}, .tokens = {1}, .pages = {page, 0}});
    return batch;
  }
  // MiB of memory that the system has given to a buffer, and that they are the MiB from `begin` on.
  int64_t resident_mib(int buffer, int64_t begin_mib = 0) const {
    std::vector<unsigned char> there(kSize / 4096);
    EXPECT_EQ(::mincore(buffers_[buffer], kSize, there.data()), 0);
    int64_t count = 0, first = -1;
    for (std::size_t i = 0; i < there.size(); ++i) {
      if ((there[i] & 1) == 0) continue;
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

TEST_F(KvAheadTest, GoesAheadInAllBuffersAndStops) {
  KvAhead ahead(layers_);
  for (int i = 0; i < kBuffers; ++i) {
    EXPECT_EQ(resident_mib(i), 0);
    EXPECT_TRUE(ahead.touch(1));
    EXPECT_EQ(resident_mib(i), 2);
  }
  EXPECT_FALSE(ahead.touch(1));
  int touches = 0;
  while (ahead.touch(ahead.rows_ahead())) ++touches;
  EXPECT_EQ(touches, 3 * kBuffers);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 8);
  while (ahead.touch(100)) ++touches;
  EXPECT_EQ(touches, 4 * kBuffers);
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i), 10);
}

TEST_F(KvAheadTest, HowFarIsToldInTokensAndBoundInBytes) {
  EXPECT_EQ(KvAhead(layers_).rows_ahead(), 4);
  for (kernels::KvLayer& layer : layers_) layer.page_size = 4096;  // small tokens: one row holds enough of them
  EXPECT_EQ(KvAhead(layers_).rows_ahead(), 1);
  for (kernels::KvLayer& layer : layers_) layer.page_size = 1;  // large ones: 512 MiB of a buffer, too much
  EXPECT_EQ(KvAhead(layers_).rows_ahead(), 32);
}

TEST_F(KvAheadTest, GoesOnAboveTheHighestPageSeen) {
  KvAhead ahead(layers_);
  ahead.saw(using_page(10));  // in 2.5 to 2.75 MiB: the batch reaches up to 4
  for (int i = 0; i < kBuffers; ++i) EXPECT_TRUE(ahead.touch(1));
  EXPECT_FALSE(ahead.touch(1));
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i, 4), 2);
  ahead.saw(using_page(3));  // lower ones change nothing
  EXPECT_FALSE(ahead.touch(1));
  ahead.saw(using_page(16));  // past 4 MiB
  EXPECT_TRUE(ahead.touch(1));
  EXPECT_EQ(resident_mib(0, 4), 4);
  ahead.saw(using_page(kPages - 1));
  EXPECT_FALSE(ahead.touch(1));
  EXPECT_FALSE(ahead.touch(100));
}

// Pages of 256 KiB: eight fill a row of 2 MiB, so with four buffers there is one touch for every second page.
TEST_F(KvAheadTest, KeepsPaceWithTheStepsThatUsePages) {
  KvAhead ahead(layers_);
  EXPECT_FALSE(ahead.touch_in_step());
  int touches = 0;
  for (int32_t page = 0; page < kPages; ++page) {
    ahead.saw(using_page(page));
    while (ahead.touch_in_step()) ++touches;
    EXPECT_EQ(touches, std::min<int>((page + 1) / 2, 4 * kBuffers)) << page;
  }
  for (int i = 0; i < kBuffers; ++i) EXPECT_EQ(resident_mib(i, 2), 8);  // the first row was the steps' own
}

TEST_F(KvAheadTest, ALongPromptReachesItsRowsItself) {
  KvAhead ahead(layers_);
  ahead.saw(using_page(9));  // a quarter of the second row
  EXPECT_TRUE(ahead.touch_in_step());
  EXPECT_FALSE(ahead.touch_in_step());
  ahead.saw(using_page(25));  // the third row and a quarter of the fourth
  EXPECT_TRUE(ahead.touch_in_step());
  EXPECT_FALSE(ahead.touch_in_step());
  EXPECT_EQ(resident_mib(0, 4), 4);  // 4 to 6 and 8 to 10 MiB
  EXPECT_EQ(resident_mib(1, 0), 0);
}

TEST_F(KvAheadTest, ChangesNoByte) {
  KvAhead ahead(layers_);
  std::vector<std::string> before;
  for (char* buffer : buffers_) {
    for (int64_t at = 0; at < kSize; at += 512) buffer[at] = static_cast<char>(at / 512 * 7 + 1);
    before.emplace_back(buffer, kSize);
  }
  while (ahead.touch(ahead.rows_ahead())) {
  }
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(std::memcmp(buffers_[i], before[i].data(), kSize), 0);
}

}  // namespace
}  // namespace millrace
