#include "relay/spin.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace millrace {
namespace {

constexpr int kTries = 10'000;  // a crowded machine may take the processor from us in the middle of a short wait

// A wait that is over at once; then whether the next one begins with looking.
bool looks_after_a_short_wait(Spin& spin) {
  for (int i = 0; i < kTries; ++i) {
    (void)spin.again();
    spin.happened();
    if (spin.again()) return true;
    spin.happened();
  }
  return false;
}

TEST(Spin, SleepsAtOnceWhereNothingIsKnown) {
  Spin spin;
  EXPECT_FALSE(spin.again());
}

TEST(Spin, LooksAgainOnlyAfterShortWaitsAndNotForEver) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor: there is no spinning";
  Spin spin;
  ASSERT_TRUE(looks_after_a_short_wait(spin));
  const auto begin = std::chrono::steady_clock::now();
  while (spin.again()) ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  // The wait grew long: a thread that gets an event now and then does not spin.
  std::this_thread::sleep_for(std::chrono::microseconds(10 * kQuickUs));
  spin.happened();
  EXPECT_FALSE(spin.again());
}

}  // namespace
}  // namespace millrace
