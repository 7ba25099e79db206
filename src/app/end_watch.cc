#include "app/end_watch.h"

#include <poll.h>
#include <unistd.h>

#include <string_view>

#include "app/signals.h"
#include "base/clock.h"
#include "stages/stage.h"

namespace millrace {
namespace {

// Who is left behind may hold the log's lock, or stdio's, and nobody may read what is said: neither is waited for.
void say_left_behind() {
  constexpr std::string_view kText = "millrace: the stages did not end in time, and are left behind\n";
  pollfd to{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&to, 1, 0) == 1) [[maybe_unused]]
    const ssize_t said = ::write(to.fd, kText.data(), kText.size());
}

}  // namespace

EndWatch::EndWatch(std::function<void()> last_act) : last_act_(std::move(last_act)) { sigemptyset(&signals_); }

EndWatch::EndWatch(const sigset_t& signals, std::function<void()> last_act)
    : signals_(signals), last_act_(std::move(last_act)) {}

EndWatch::~EndWatch() {
  ended_.store(true);
  if (thread_.joinable()) thread_.join();
}

void EndWatch::begin(int grace_ms, int exit_code) {
  std::call_once(begun_,
                 [&] { thread_ = std::thread([this, grace_ms, exit_code] { end_by_force(grace_ms, exit_code); }); });
}

void EndWatch::end_by_force(int grace_ms, int exit_code) {
  const int64_t force_ms = monotonic_ms() + grace_ms;
  while (!ended_.load()) {
    if (!stop_signal(signals_) && monotonic_ms() < force_ms) continue;
    say_left_behind();
    last_act_();
    ::_exit(exit_code);
  }
}

}  // namespace millrace
