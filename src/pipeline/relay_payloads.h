// RelayPayloads: the coordinator's side of the data plane over real relays.
//
// A get that a relay has no capacity for waits and is tried again with each tick, the oldest first, until its deadline.
//
// Owner: app/instance.h. Thread safety: as Payloads. The relays may answer on any thread; `wake` is called there, and
// the answer is taken with the next tick().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "pipeline/coordinator_env.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/relay_choice.h"

namespace millrace {

class RelayPayloads : public Payloads {
 public:
  // `self`: this process as the stages know it; `wanted`: the backend that the spec asks for, or "auto".
  RelayPayloads(wire::Peer self, loop::Relays relays, std::string wanted, std::function<void()> wake);
  ~RelayPayloads() override;

  Result<wire::Payload> give(ReqId id, const Value& value, const wire::Peer& to) override;
  void take(ReqId id, const wire::Payload& payload, int timeout_ms, Taken done) override;
  void forget(ReqId id) override;
  void tick(int64_t now_ms) override;

  std::size_t open_puts() const {
    std::lock_guard lock(calls_mutex_);
    return calls_.open_puts();
  }
  std::size_t open_gets() const { return gets_.size(); }

 private:
  struct Get {
    ReqId request;
    wire::Payload payload;
    int64_t until_ms = 0;  // 0: not known before the next tick
    int timeout_ms = 0;
    bool waits = true;  // for capacity of the relay
    Taken done;
  };
  using GetIt = std::map<uint64_t, Get>::iterator;

  Status try_get(uint64_t number, Get& get);
  GetIt finish(GetIt get, Result<Value> value);

  const wire::Peer self_;
  const loop::Relays relays_;
  const std::string wanted_;
  mutable std::mutex calls_mutex_;  // not held while a put copies
  loop::RelayCalls calls_;
  uint64_t next_get_ = 1;
  std::map<uint64_t, Get> gets_;  // the oldest first
};

}  // namespace millrace
