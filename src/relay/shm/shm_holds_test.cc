// Two threads of one reader meet on the hold word of one slot: one comes when its put is over.
#include <gtest/gtest.h>

#include "relay/shm/channel.h"

namespace millrace::shm {
namespace {

// It looked while put 5 was offered, and would write its hold when that put is over.
TEST(ShmHolds, AThreadThatComesTooLateChangesNothingOfTheNextPut) {
  std::atomic<uint64_t> word{pack({4, 0, 1})};
  bool over = false;
  const auto late = take_hold(word, 5, [&] {
    if (over) return invalid_argument("over");
    over = true;
    // Right after the look: put 6 is offered, and the other thread gets and releases it.
    EXPECT_TRUE(take_hold(word, 6, ok_status).ok());
    EXPECT_EQ(word.load(), pack({6, 1, 0}));
    word = pack({6, 0, 1});
    return ok_status();
  });
  EXPECT_EQ(late.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(word.load(), pack({6, 0, 1})) << "the release is lost";
}

// It wrote its hold while no put was offered, and has not given up yet.
TEST(ShmHolds, AHoldThatCameTooLateDoesNotKeepTheNextPut) {
  std::atomic<uint64_t> word{pack({5, 1, 0})};
  const auto mine = take_hold(word, 6, ok_status);
  ASSERT_TRUE(mine.ok()) << mine.status().to_string();
  EXPECT_EQ(word.load(), pack({6, 1, 0}));
  // A second get of the same put counts beside it.
  EXPECT_TRUE(take_hold(word, 6, ok_status).ok());
  EXPECT_EQ(word.load(), pack({6, 2, 0}));
}

TEST(ShmHolds, ACountDoesNotRunIntoTheNextField) {
  for (const Hold full : {Hold{6, UINT16_MAX, 0}, Hold{6, 0, UINT16_MAX}}) {
    std::atomic<uint64_t> word{pack(full)};
    EXPECT_EQ(take_hold(word, 6, ok_status).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(word.load(), pack(full));
  }
}

}  // namespace
}  // namespace millrace::shm
