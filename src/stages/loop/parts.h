// StageLoopParts: the parts of a StageLoop, in the order of construction: each uses those above it.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <utility>
#include <vector>

#include "stages/loop/context.h"
#include "stages/loop/intake.h"
#include "stages/loop/lease.h"
#include "stages/loop/output_router.h"
#include "stages/loop/peer_gate.h"
#include "stages/loop/request_ends.h"

namespace millrace::loop {

// Sends one message of a stage loop, whose `from` it fills. kResourceExhausted, and kUnavailable of a stage: not now.
Status send_batch(LoopContext& context, const Outgoing::Receiver& to, wire::Message& message);

struct StageLoopParts {
  StageLoopParts(StageLoopConfig config, LoopRules the_rules, StageLoopEnv env)
      : rules(std::move(the_rules)), context(std::move(config), std::move(env)) {
    context.fail = [this](LoopRequest& request, Status why) { ends.fail(request, std::move(why)); };
    // Not before an output that take_outputs() has yet to come to.
    context.env.worker->on_delta(
        [this](ReqId id, Body& delta, bool to_all) { return outputs.empty() && router.take_now(id, delta, to_all); });
  }
  StageLoopBooks books() const;

  const LoopRules rules;
  LoopContext context;
  Lease lease{context};
  PeerGate gate{context, lease};
  RequestTable requests;
  RelayCalls calls{context.env.wake};
  Outgoing outgoing{
      [this](const Outgoing::Receiver& to, wire::Message& message) { return send_batch(context, to, message); }};
  Notices notices{context, outgoing};
  InputAcks acks{context, requests, outgoing};
  WorkQueue work{context, requests, acks};
  Fetches fetches{context, requests, calls};
  InputStreams streams{context, fetches, work, acks, notices};
  FanIn fan_in{context, rules, streams, fetches, work, acks};
  Intake intake{context, requests, streams, fan_in, fetches, acks, notices};
  EdgeSender sender{context, requests, outgoing, calls};
  OutputRouter router{context, rules, sender, work, streams, requests};
  RequestEnds ends{context, requests, calls, sender, work, acks, notices};
  // Of one step; kept for their capacity.
  std::vector<CallEnd> call_ends;
  std::vector<WorkOutput> outputs;
};

}  // namespace millrace::loop
