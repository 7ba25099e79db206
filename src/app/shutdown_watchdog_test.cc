// With which code a process ends that is asked to end and does not.
#include "app/shutdown_watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "app/signals.h"

namespace millrace {
namespace {

constexpr int kLongMs = 600'000;

// Never returns: the process has begun to end, and hangs.
void hang(int grace_ms, ShutdownWatchdog::ExitCodes codes, bool signaled) {
  const sigset_t signals = block_stop_signals();
  ShutdownWatchdog end(signals, [] {});
  end.begin(grace_ms, codes);
  if (signaled) ::kill(::getpid(), SIGTERM);
  for (;;) ::pause();
}

TEST(ShutdownWatchdogDeathTest, ASignalAndTheTimeLimitHaveAnExitCodeEach) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ShutdownWatchdog::ExitCodes codes{.at_timeout = 7, .at_signal = 0};
  EXPECT_EXIT(hang(kLongMs, codes, true), ::testing::ExitedWithCode(0), "left behind");
  EXPECT_EXIT(hang(1, codes, false), ::testing::ExitedWithCode(7), "left behind");
}

}  // namespace
}  // namespace millrace
