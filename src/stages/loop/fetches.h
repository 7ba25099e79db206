// Fetches: the gets of a stage loop: payloads and chunks whose tensors lie in a relay, and of what has ended here,
// whose sender still holds a credit (drains). A get that the relay refuses for now waits and is tried again.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "stages/loop/context.h"
#include "stages/loop/relay_calls.h"

namespace millrace::loop {

class Fetches {
 public:
  struct Waiting {
    CallPurpose purpose;
    wire::Payload payload;
  };

  Fetches(LoopContext& context, RelayCalls& calls) : context_(context), calls_(calls) {}

  // The value, where its bytes are in the message; nullopt: its end comes by RelayCalls, or it waits.
  Result<std::optional<Value>> fetch(const LoopRequest& request, CallPurpose purpose, wire::Payload payload);
  // Of a get of a live request, as RelayCalls has collected it.
  static Result<Value> value_of(CallEnd& end);
  // Not wanted any more, but its sender holds a credit, and may wait for acknowledgements, until it is taken.
  void drain(ReqId id, const wire::Payload& payload);
  void drain_ended() { --drains_; }
  // Those that were refused; each that is of a live request is to be fetched again.
  std::deque<Waiting> take_waiting() { return std::exchange(waiting_, {}); }

  std::size_t drains() const { return drains_; }
  std::size_t waiting() const { return waiting_.size(); }

 private:
  // True: it is under way; false: the relay refuses it for now.
  Result<bool> try_get(const CallPurpose& purpose, const wire::Payload& payload, int64_t timeout_ms);

  LoopContext& context_;
  RelayCalls& calls_;
  std::deque<Waiting> waiting_;
  std::size_t drains_ = 0;
};

}  // namespace millrace::loop
