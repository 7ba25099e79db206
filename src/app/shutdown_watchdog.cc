#include "app/shutdown_watchdog.h"

#include <poll.h>
#include <unistd.h>

#include <string_view>

#include "app/signals.h"
#include "base/clock.h"
#include "stages/stage.h"

namespace millrace {
namespace {

// Threads that are left behind may hold the log's lock, or stdio's, and stderr may have no reader: none is waited for.
void report_left_behind() {
  constexpr std::string_view kText = "millrace: the stages did not end in time, and are left behind\n";
  pollfd to{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&to, 1, 0) == 1) [[maybe_unused]]
    const ssize_t written = ::write(to.fd, kText.data(), kText.size());
}

}  // namespace

ShutdownWatchdog::ShutdownWatchdog(std::function<void()> last_act) : last_act_(std::move(last_act)) {
  sigemptyset(&signals_);
}

ShutdownWatchdog::ShutdownWatchdog(const sigset_t& signals, std::function<void()> last_act)
    : signals_(signals), last_act_(std::move(last_act)) {}

ShutdownWatchdog::~ShutdownWatchdog() {
  ended_.store(true);
  if (thread_.joinable()) thread_.join();
}

void ShutdownWatchdog::begin(int grace_ms, ExitCodes codes) {
  std::call_once(begun_, [&] { thread_ = std::thread([this, grace_ms, codes] { end_by_force(grace_ms, codes); }); });
}

void ShutdownWatchdog::end_by_force(int grace_ms, ExitCodes codes) {
  const int64_t force_ms = monotonic_ms() + grace_ms;
  while (!ended_.load()) {
    const bool signaled = stop_signal(signals_);
    if (!signaled && monotonic_ms() < force_ms) continue;
    report_left_behind();
    last_act_();
    ::_exit(signaled ? codes.at_signal : codes.at_timeout);
  }
}

}  // namespace millrace
