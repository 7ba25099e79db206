// PayloadFetches: fetches of payloads that came through relays. An Arrival is a fetch that ended; it lies here until
// the owner takes it.
//
// Owner: Delivery. Thread safety: none, but for the data plane, which may end a fetch on any thread, even after the end
// of this object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/coordinator_env.h"

namespace millrace {

inline constexpr int64_t kFetchTimeoutMs = 10'000;  // of one payload; or less, by the deadline of its request

class PayloadFetches {
 public:
  struct Arrival {
    ReqId id;
    std::size_t stage = 0;
    std::optional<uint64_t> chunk;  // none: the result
    bool wanted = true;             // false: fetched only to free the sender's memory
    Result<Value> value = Value();
  };

  // `payloads` must outlive it.
  explicit PayloadFetches(Payloads& payloads) : payloads_(payloads) {}

  // The arrival has the fields of `wanted` and the value.
  void start(const wire::Payload& payload, const Arrival& wanted, int64_t time_left_ms) {
    ++open_;
    const auto timeout_ms = static_cast<int>(std::clamp<int64_t>(time_left_ms, 1, kFetchTimeoutMs));
    payloads_.take(wanted.id, payload, timeout_ms, [to = arrivals_, wanted](Result<Value> value) {
      std::function<void()> wake;
      {
        std::lock_guard lock(to->mutex);
        to->arrived.push_back(wanted);
        if (wanted.wanted) to->arrived.back().value = std::move(value);
        wake = to->wake;
      }
      if (wake) wake();
    });
  }
  std::vector<Arrival> take() {
    std::lock_guard lock(arrivals_->mutex);
    CHECK(arrivals_->arrived.size() <= open_);
    open_ -= arrivals_->arrived.size();
    return std::exchange(arrivals_->arrived, {});
  }
  // Called on any thread when there is something to take.
  void on_arrival(std::function<void()> wake) {
    std::lock_guard lock(arrivals_->mutex);
    arrivals_->wake = std::move(wake);
  }
  std::size_t open() const { return open_; }

 private:
  struct Arrivals {
    std::mutex mutex;
    std::vector<Arrival> arrived;
    std::function<void()> wake;
  };

  Payloads& payloads_;
  const std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  std::size_t open_ = 0;
};

}  // namespace millrace
