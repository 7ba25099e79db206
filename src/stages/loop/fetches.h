// Fetches: the gets of a stage loop: payloads and chunks whose tensors lie in a relay, and of what has ended here,
// whose sender still holds a credit (drains). A get that the relay refuses for now waits and is tried again.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <functional>

#include "stages/loop/context.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

class Fetches {
 public:
  using Arrived = std::function<void(LoopRequest&, const CallPurpose&, Value)>;
  Fetches(LoopContext& context, RequestTable& requests, RelayCalls& calls)
      : context_(context), requests_(requests), calls_(calls) {}

  // Once, before the first fetch. Called from inside fetch(), ended() and retry().
  void on_arrival(Arrived arrived) { arrived_ = std::move(arrived); }
  void fetch(LoopRequest& request, CallPurpose purpose, wire::Payload payload);
  // Not wanted any more, but its sender holds a credit, and may wait for acknowledgements, until it is taken.
  void drain(ReqId id, const wire::Payload& payload);
  // A get or a drain of a live request, as RelayCalls has collected it.
  void ended(LoopRequest& request, CallEnd& end);
  void drain_ended() { --drains_; }
  void retry();

  std::size_t drains() const { return drains_; }
  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    CallPurpose purpose;
    wire::Payload payload;
  };
  // True: it is under way; false: the relay refuses it for now.
  Result<bool> try_get(const CallPurpose& purpose, const wire::Payload& payload, int64_t timeout_ms);
  void arrive(LoopRequest& request, const CallPurpose& purpose, Result<Value> value);

  LoopContext& context_;
  RequestTable& requests_;
  RelayCalls& calls_;
  Arrived arrived_;
  std::deque<Waiting> waiting_;
  std::size_t drains_ = 0;
};

}  // namespace millrace::loop
