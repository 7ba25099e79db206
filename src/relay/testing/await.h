// For tests: waits for the end of a put or a get. Await counts how often `done` came, so a second time is seen.
//
//      AwaitGet end;
//      auto op = reader.get({.descriptor = d, .sizes = sizes, .done = end.callback()});
//      auto parts = end.wait();
//
// Thread safety: callback() may be called on any thread; it keeps what it needs alive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace::relay_testing {

inline constexpr int kPatienceMs = 60'000;  // a loaded machine, a sanitizer; nothing passes because of it

template <typename T>
class Await {
 public:
  std::function<void(T)> callback() {
    return [state = state_](T value) {
      std::lock_guard lock(state->mutex);
      ++state->count;
      if (!state->value) state->value.emplace(std::move(value));
      state->changed.notify_all();
    };
  }
  // How often `done` was called so far.
  int count() const {
    std::lock_guard lock(state_->mutex);
    return state_->count;
  }
  bool ready() const { return count() > 0; }
  // False: it did not come in time.
  bool wait_ready(int patience_ms = kPatienceMs) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, std::chrono::milliseconds(patience_ms), [&] { return state_->count > 0; });
  }
  // The value, moved out; nullopt after kPatienceMs.
  std::optional<T> wait(int patience_ms = kPatienceMs) {
    if (!wait_ready(patience_ms)) return std::nullopt;
    std::lock_guard lock(state_->mutex);
    return std::exchange(state_->value, std::nullopt);
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
    std::optional<T> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

using AwaitGet = Await<Result<std::vector<SharedBytes>>>;

class AwaitPut : public Await<Status> {
 public:
  std::function<void(const Status&)> callback() { return Await<Status>::callback(); }
};

// Polls a condition that no event announces; false after the patience.
inline bool eventually(const std::function<bool()>& condition, int patience_ms = kPatienceMs) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace millrace::relay_testing
