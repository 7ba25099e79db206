#include "kv/media_ids.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(MediaIdsTest, OneNumberForEachDigest) {
  MediaIds ids;
  EXPECT_EQ(ids.id("a"), kFirstMediaId);
  EXPECT_EQ(ids.id("b"), kFirstMediaId - 1);
  EXPECT_EQ(ids.id("a"), kFirstMediaId);
  EXPECT_EQ(ids.known(), 2u);
  EXPECT_TRUE(is_media_id(ids.id("b")));
  EXPECT_FALSE(is_media_id(-1));
  EXPECT_FALSE(is_media_id(0));
}

// A cached page may still have the old number in its key.
TEST(MediaIdsTest, AForgottenDigestGetsANumberThatNoOtherHad) {
  MediaIds ids(2);
  const int32_t a = ids.id("a"), b = ids.id("b");
  ids.id("a");
  const int32_t c = ids.id("c");  // forgets b, the one that was asked for longest ago
  EXPECT_EQ(ids.known(), 2u);
  EXPECT_EQ(ids.id("a"), a);
  const int32_t again = ids.id("b");
  EXPECT_NE(again, a);
  EXPECT_NE(again, b);
  EXPECT_NE(again, c);
}

TEST(MediaIdsTest, NumbersEndAndNeverBeginAgain) {
  MediaIds ids(4, kLastMediaId);
  EXPECT_EQ(ids.id("a"), kLastMediaId);
  EXPECT_EQ(ids.id("b"), kNoMediaId);
  EXPECT_EQ(ids.id("c"), kNoMediaId);
  EXPECT_EQ(ids.id("a"), kLastMediaId);
}

}  // namespace
}  // namespace millrace
