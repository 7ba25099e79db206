#include "pipeline/payload_fetches.h"

#include <algorithm>
#include <utility>

namespace millrace {

void PayloadFetches::start(const wire::Payload& payload, Arrival wanted, int64_t time_left_ms) {
  ++open_;
  const int64_t timeout_ms = std::clamp<int64_t>(time_left_ms, 1, kFetchTimeoutMs);
  const ReqId id = wanted.id;
  payloads_.take(id, payload, static_cast<int>(timeout_ms),
                 [to = arrivals_, arrival = std::move(wanted)](Result<Value> value) mutable {
                   if (arrival.wanted) arrival.value = std::move(value);
                   std::function<void()> wake;
                   {
                     std::lock_guard lock(to->mutex);
                     to->arrived.push_back(std::move(arrival));
                     wake = to->wake;
                   }
                   if (wake) wake();
                 });
}

std::vector<PayloadFetches::Arrival> PayloadFetches::take() {
  std::lock_guard lock(arrivals_->mutex);
  open_ -= arrivals_->arrived.size();
  return std::exchange(arrivals_->arrived, {});
}

void PayloadFetches::on_arrival(std::function<void()> wake) {
  std::lock_guard lock(arrivals_->mutex);
  arrivals_->wake = std::move(wake);
}

}  // namespace millrace
