#include "runner/range_liveness.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(RangeLiveness, CountsOnlyTheTimeInWhichItLooks) {
  RangeLiveness liveness(3);
  RangeLiveness::Clock::time_point now{};
  const auto pass = [&](int ms) { liveness.look(now += std::chrono::milliseconds(ms)); };
  pass(0);
  pass(100'000);
  EXPECT_FALSE(liveness.any());
  EXPECT_FALSE(liveness.silent_over(0));  // none ever sent
  RangeLiveness expected(3);
  expected.look(now);
  expected.expect_all();
  expected.look(now + std::chrono::milliseconds(7));
  expected.expect_all();  // counts on
  EXPECT_EQ(expected.silent_over(6), 1u);
  expected.on_alive(1);
  EXPECT_EQ(expected.silent_over(6), 2u);
  liveness.on_alive(2);
  EXPECT_TRUE(liveness.any());
  for (int i = 0; i < 3; ++i) pass(kAliveCheckMs);
  EXPECT_FALSE(liveness.silent_over(3 * kAliveCheckMs));
  pass(1);
  EXPECT_EQ(liveness.silent_over(3 * kAliveCheckMs), 2u);
  liveness.on_alive(2);
  EXPECT_FALSE(liveness.silent_over(0));
  pass(100'000);  // this process was not running
  EXPECT_FALSE(liveness.silent_over(kAliveCheckMs));
  liveness.forget(2);
  for (int i = 0; i < 100; ++i) pass(kAliveCheckMs);
  EXPECT_FALSE(liveness.silent_over(0));
  liveness.on_alive(7);  // none of this chain
  EXPECT_FALSE(liveness.silent_over(0));
}

}  // namespace
}  // namespace millrace
