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

struct StageLoopParts {
  StageLoopParts(StageLoopConfig config, LoopRules the_rules, StageLoopEnv env)
      : rules(std::move(the_rules)), context(std::move(config), std::move(env)) {}
  StageLoopBooks books() const;

  const LoopRules rules;
  LoopContext context;
  Lease lease{context};
  PeerGate gate{context, lease};
  RequestTable requests;
  RelayCalls calls{context.env.wake};
  Outgoing outgoing{context};
  Notices notices{context, outgoing};
  InputAcks acks{context, requests, outgoing, notices};
  WorkQueue work{context, requests, acks};
  EdgeSender sender{context, requests, outgoing, calls};
  Fetches fetches{context, calls};
  InputStreams streams{context, fetches, work, acks, notices};
  FanIn fan_in{context, rules, streams, fetches, sender, work};
  Intake intake{context, requests, streams, fan_in, fetches, acks, notices};
  OutputRouter router{context, rules, sender, work, streams, requests};
  RequestEnds ends{context, requests, calls, fan_in, streams, sender, work, acks, notices};
  // Of one step; kept for their capacity.
  std::vector<CallEnd> call_ends;
  std::vector<WorkOutput> outputs;
};

}  // namespace millrace::loop
