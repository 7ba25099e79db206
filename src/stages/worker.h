// Worker: the computation of one stage, apart from everything that moves messages. A stage loop (stages/stage_loop.h)
// owns one and makes one call at a time, so a worker needs no locks.
//
// Owner: its WorkerHost (stages/loop/worker_host.h). Threads: a worker has a thread of its own, where a call may take
// long, unless the library names it in short_calls: its calls are then made on the loop's thread and last a step at
// most. load() runs on the worker's thread, or, without one, on a thread that ends with it. Any thread may call
// pulse(), drain() and holds() after load().
//
// Life of a worker: load() once, then requests and admin commands until it is destroyed. Life of a request: start()
// once, with its payload (merged, where the stage waits for several); chunk() in order and chunks_done() for each
// stream into the stage, before start() only where the spec allows it; then drop(), once, after its result, its failure
// or its abort: the last call for this request. A request that only ever streamed in and was aborted gets drop() as
// well.
//
// Text has typed calls beside these: a prompt that is tokenized already comes by generate() instead of start(), the
// deltas of a stage that generates by tokens() instead of chunk().
//
// Outputs go to Emit, from inside any of these calls, at once or in a later one: chunks, then exactly one result or
// failure. Outputs for a request that has ended are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kRestMs = 5;

// Called from the thread that loads, with the action ("loading weights") and 0..1.
using LoadProgress = std::function<void(const std::string& action, double fraction)>;

class Emit {
 public:
  virtual ~Emit() = default;
  // To all of stream_to that this request streams to; of a terminal without stream_to, to the client.
  virtual void chunk(ReqId id, Value chunk) = 0;
  // To one of stream_to, or to the client where `target` is empty; `modality` is for the client ("text", "audio").
  virtual void chunk_to(ReqId id, const std::string& target, Value chunk, const std::string& modality) = 0;
  // A chunk for all of stream_to.
  virtual void tokens(ReqId id, wire::TokenDelta delta) = 0;
  // A chunk for the client: of a terminal alone.
  virtual void text(ReqId id, wire::TextDelta delta) = 0;
  // So many chunks of the request wait for their receivers that the worker should let it rest, and ask again after
  // kRestMs. A worker that cannot pause it may go on; over the loop's limits the request fails.
  virtual bool congested(ReqId id) const = 0;
  virtual void result(ReqId id, Value result) = 0;
  virtual void fail(ReqId id, Status status) = 0;
  // The one reply to an admin command, by the command's id; `weights`: of one about weights.
  virtual void reply(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights = {}) = 0;
};

// Whether a worker moves, for the stall check: one that is busy and whose progress stands still is stalled.
struct Pulse {
  bool busy = false;
  uint64_t progress = 0;
};

class Worker {
 public:
  virtual ~Worker() = default;
  // Everything that takes long before the first request (weights). Until it returns, the stage reports "loading" and
  // events wait. An error ends the stage.
  virtual Status load(const LoadProgress& progress);
  // The request of the next start() or generate(), which follows at once, is traced: the span of its server. For
  // workers that ask others to work for it.
  virtual void trace(std::string /*traceparent*/) {}
  virtual void start(ReqId id, Value payload, Emit& emit) = 0;
  virtual void chunk(ReqId id, const std::string& from, Value chunk, Emit& emit);
  // Fails the request by default: this worker does not generate.
  virtual void generate(ReqId id, wire::TokenizedRequest request, Emit& emit);
  // By default chunk() with {"ids"}, for a delta that has some.
  virtual void tokens(ReqId id, const std::string& from, wire::TokenDelta delta, Emit& emit);
  virtual void chunks_done(ReqId id, const std::string& from, Emit& emit);
  virtual void drop(ReqId id) = 0;
  // Called after every event and when it asked to be: does what is due and returns in how many ms it wants to be called
  // again (a batch that fills, a clock); kNever: not before the next event; 0: at once, after the waiting events.
  virtual int tick(int64_t now_ms, Emit& emit);
  // Replies once through `emit`, in this call or later; a command that waits (a flush, for idleness) waits at most
  // command.timeout_ms. By default kUnsupported. Profiles are the process's and never come here.
  virtual void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit);
  // The stage has lost its lease: its requests are dropped, and the coordinator of the next one, which may be another,
  // takes it for a stage that has just started. What earlier commands have set (a pause) ends here.
  virtual void on_lease_lost() {}
  // Fills a heartbeat's numbers: steps, queues, pages, weights, metrics. False, the default: it has none of its own.
  virtual bool describe(wire::StageStatus& status) const;
  // Any thread, after load(). nullopt: each call is taken as one unit of work, stalled when it lasts too long.
  virtual std::optional<Pulse> pulse() const;

  // Any thread, after load(). The stage is to end: of what other servers want by themselves nothing new is begun;
  // requests come and run as before.
  virtual void drain() {}
  // Any thread, after load(). Other servers still take something that they were promised.
  virtual bool holds() const { return false; }

  static constexpr int kNever = -1;
};

// ---- ready-made ones

// One payload in, one result out.
using WorkFunction = std::function<Result<Value>(ReqId id, Value payload)>;
std::unique_ptr<Worker> make_function_worker(WorkFunction work);

struct BatchLimits {
  int max_batch = 32;
  int max_wait_ms = 50;  // of the oldest that waits
  double max_cost = 0;   // of a batch together; 0: no limit. One that costs more by itself goes alone
};
// Results in the order of the payloads; one Status of an element fails that request alone.
using BatchFunction = std::function<std::vector<Result<Value>>(std::vector<Value> payloads)>;
using CostFunction = std::function<double(const Value& payload)>;
std::unique_ptr<Worker> make_batch_worker(BatchFunction work, BatchLimits limits, CostFunction cost = nullptr);

}  // namespace millrace
