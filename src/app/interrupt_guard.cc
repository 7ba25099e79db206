#include "app/interrupt_guard.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>

namespace millrace {
namespace {

constexpr int kAgainMs = 20;

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_event{-1};  // an eventfd that the handler writes; made once, never closed

void on_signal(int) {
  g_interrupted.store(true);
  (void)::eventfd_write(g_event.load(), 1);
}

}  // namespace

void catch_interrupts(std::initializer_list<int> signals) {
  if (g_event.load() < 0) g_event.store(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = 0;  // not SA_RESTART
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
}

bool take_interrupt() {
  eventfd_t count = 0;
  (void)::eventfd_read(g_event.load(), &count);
  return g_interrupted.exchange(false);
}

InterruptsHeld::InterruptsHeld() {
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &interrupt, &before_);
}

InterruptsHeld::~InterruptsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

InterruptGuard::InterruptGuard(http::Client& client) : client_(client), done_(::eventfd(0, EFD_CLOEXEC)) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the owner's: its waits end
  thread_ = std::thread([this] { end_waits(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

InterruptGuard::~InterruptGuard() {
  ::eventfd_write(done_.get(), 1);
  thread_.join();
}

bool InterruptGuard::interrupted() const { return g_interrupted.load(); }

// The first signal may come before the wait, and the request may not have its connection yet: again until it ends.
void InterruptGuard::end_waits() {
  std::array<pollfd, 2> files = {{{g_event.load(), POLLIN, 0}, {done_.get(), POLLIN, 0}}};
  while (::poll(files.data(), files.size(), -1) >= 0 && files[1].revents == 0) {
    client_.interrupt();
    ::pthread_kill(owner_, SIGINT);
    if (::poll(&files[1], 1, kAgainMs) != 0) return;
  }
}

}  // namespace millrace
