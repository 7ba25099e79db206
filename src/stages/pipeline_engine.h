// PipelineEngine: what the api asks of a pipeline of any shape. pipeline/coordinator serves; tests bring a fake one.
//
// Every submitted request gets its events through its sink: parts of the answer as they are made, then exactly one end.
// A request that is refused gets only its end, perhaps from inside submit().
//
// Owner: in the server app/instance.h; in a test the test. Thread safety: all functions from any thread. A sink is
// called by one thread at a time, in order; of all these functions it may call abort() alone. After abort() returns,
// one event that was already under way may still arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/metrics.h"
#include "base/status.h"
#include "payload/value.h"
#include "stages/engine.h"
#include "stages/replica_router.h"
#include "stages/request_event.h"
#include "stages/weight_control.h"

namespace millrace {

struct SubmitOptions {
  std::optional<std::vector<std::string>> terminals;  // that complete it; nullopt: by the pipeline's rule, or all
  int64_t timeout_ms = 0;                             // 0: the pipeline's limit, which is the most
  bool inputs_follow = false;                         // there are none yet: they come by set_prompt()
  std::string traceparent;                            // of the span of its server; "": it is not traced
};

struct PipelineRequest {
  Value inputs;
  SubmitOptions options;
};

class PipelineEngine {
 public:
  using Sink = RequestSink;

  virtual ~PipelineEngine() = default;
  virtual ReqId submit(PipelineRequest request, Sink sink) = 0;
  // The prompt of a request that was submitted without inputs, for an entry stage that generates; or why there is none.
  // Ignored where the request has ended meanwhile.
  virtual void set_prompt(ReqId id, Result<wire::TokenizedRequest> request, PlacementHint hint) = 0;
  virtual bool is_live(ReqId id) const = 0;
  // Ends the request without further events; a sink may call this. Unknown or ended ids are ignored.
  virtual void abort(ReqId id) = 0;
  // Ends it with the event of a status kCancelled.
  virtual void cancel(ReqId id) = 0;
  // An admin command to every stage; `done` is called once, on another thread, with one reply of each replica, in the
  // order of the pipeline. One that does not answer within timeout_ms gives a reply with kDeadline; one that is not up,
  // kUnavailable; one to which the command means nothing, kUnsupported. Before those stands the coordinator's where it
  // refused the command, and of profiles always: when one ends, its message is the path of the trace.
  virtual void admin(wire::AdminAction action, int64_t timeout_ms,
                     std::function<void(std::vector<wire::AdminReply>)> done) = 0;
  // null: its weights are never updated.
  virtual WeightControl* weights() const { return nullptr; }
  virtual Health health() const = 0;
  // Its own numbers for /metrics, besides those of the stages in health().
  virtual std::vector<MetricSample> samples() const { return {}; }
  // The longest life of a request; a client may ask for less.
  virtual int64_t request_timeout_s() const = 0;
  // For people: the pipeline's name, and its picture as SVG.
  virtual const std::string& name() const = 0;
  virtual const std::string& picture() const = 0;
  virtual std::vector<StageLink> links() const { return {}; }
};

}  // namespace millrace
