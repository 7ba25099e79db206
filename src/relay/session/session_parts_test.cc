// The parts of the session that need no channel: layout and gaps.
#include <gtest/gtest.h>

#include "relay/session/gaps.h"
#include "relay/session/layout.h"
#include "relay/testing/patterns.h"

namespace millrace::session {
namespace {

constexpr FrameRules kRules[] = {
    {},
    {.frame_bytes = 512u << 10},
    {.frame_bytes = 4u << 20, .packed_bytes = 64u << 10, .alone_bytes = 16u << 10},
};

// Every byte of every part is in exactly one frame, in order, and no frame is larger than its rules allow.
TEST(SessionLayout, FramesCoverEverythingOnceAndLargePartsStandAlone) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto sizes = relay_testing::random_sizes(seed, 200, seed % 7 == 0 ? 10u << 20 : 40u << 10);
    const FrameRules& rules = kRules[seed % 3];
    Layout layout(sizes, rules);
    if (seed % 2 == 1) {
      std::vector<bool> candidates;
      for (std::size_t i = 0; i < sizes.size(); ++i) candidates.push_back((seed + i) % 3 != 0);
      layout.set_alone(std::move(candidates));
    }
    std::vector<std::size_t> covered(sizes.size());
    for (std::size_t at = 0; at < layout.total();) {
      const std::size_t end = layout.frame_end(at);
      ASSERT_GT(end, at);
      ASSERT_LE(end - at, rules.frame_bytes);
      const auto slices = layout.slices(at, end);
      ASSERT_TRUE(slices.size() == 1 || end - at <= rules.packed_bytes);
      for (const Layout::Slice& slice : slices) {
        ASSERT_EQ(slice.offset, covered[slice.part]);
        covered[slice.part] += slice.size;
        ASSERT_TRUE(!layout.alone(slice.part) || slices.size() == 1);
      }
      at = end;
    }
    ASSERT_EQ(covered, sizes);
  }
  EXPECT_EQ(Layout(std::vector<std::size_t>{0, 0}, {}).frame_end(0), 0u);
}

TEST(SessionLayout, PartsOfABlockAreAlignedAndApart) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto sizes = relay_testing::random_sizes(seed, 50, 1u << 16);
    const Layout layout(sizes, {});
    std::size_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(layout.block_offset(i) % kBufferAlignment, 0u);
      ASSERT_GE(layout.block_offset(i), end);
      ASSERT_LT(layout.block_offset(i), end + kBufferAlignment);
      end = layout.block_offset(i) + sizes[i];
    }
    ASSERT_GE(layout.block_bytes(), end);
    ASSERT_LT(layout.block_bytes(), end + kBufferAlignment);
  }
}

// Against a plain array of flags: random frames, some of which overlap or leave the range.
TEST(SessionGaps, OnlyWhatIsMissingFits) {
  for (uint64_t seed = 1; seed < 200; ++seed) {
    constexpr uint64_t kBegin = 100, kEnd = 400;
    Gaps gaps(kBegin, kEnd);
    std::vector<bool> missing(500);
    for (uint64_t i = kBegin; i < kEnd; ++i) missing[i] = true;
    uint64_t state = seed;
    for (int step = 0; step < 300; ++step) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const uint64_t offset = (state >> 33) % 450, size = (state >> 20) % 40;
      bool all = size > 0;
      for (uint64_t i = offset; i < offset + size; ++i) all = all && missing[i];
      ASSERT_EQ(gaps.fits(offset, size), all);
      if (!all) continue;
      gaps.fill(offset, size);
      for (uint64_t i = offset; i < offset + size; ++i) missing[i] = false;
    }
    uint64_t left = 0;
    for (const auto& [begin, end] : gaps.all()) {
      for (uint64_t i = begin; i < end; ++i) ASSERT_TRUE(missing[i]);
      left += end - begin;
    }
    EXPECT_EQ(left, static_cast<uint64_t>(std::count(missing.begin(), missing.end(), true)));
    EXPECT_EQ(gaps.none(), left == 0);
  }
  EXPECT_FALSE(Gaps(0, UINT64_MAX).fits(UINT64_MAX - 1, 2));
  EXPECT_TRUE(Gaps(5, 5).none());
}

}  // namespace
}  // namespace millrace::session
