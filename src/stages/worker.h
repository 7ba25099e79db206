// Worker: the work of one stage, apart from everything that moves messages. A stage loop (stages/stage_loop.h) owns one
// and calls it on a thread of the worker's own, one call at a time, so a worker needs no locks and may compute for
// long.
//
// Way of a request: start() once, when its payload is there (merged, where the stage waits for several); chunk() in
// order and chunks_done() for each stream into the stage, perhaps before start() where the spec allows it; then drop(),
// once, after its result, its failure or its abort: the last time the worker hears of it. A request that only ever
// streamed in and was aborted gets drop() as well.
//
// What the worker has to say goes to Emit, from inside any of these calls, at once or in a later one: chunks, then
// exactly one result or failure. What is said of a request that has ended is ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"

namespace millrace {

inline constexpr int kRestMs = 5;

class Emit {
 public:
  virtual ~Emit() = default;
  // To everyone in stream_to whom this request streams to; of a terminal without stream_to, to the client.
  virtual void chunk(ReqId id, Value chunk) = 0;
  // To one of stream_to, or to the client where `target` is empty; `modality` is for the client ("text", "audio").
  virtual void chunk_to(ReqId id, const std::string& target, Value chunk, const std::string& modality) = 0;
  // So many chunks of the request wait for their receivers that the worker had better let it rest, and look again after
  // kRestMs. One that cannot rest may go on; over the loop's limits the request fails.
  virtual bool congested(ReqId id) const = 0;
  virtual void result(ReqId id, Value result) = 0;
  virtual void fail(ReqId id, Status status) = 0;
};

class Worker {
 public:
  virtual ~Worker() = default;
  virtual void start(ReqId id, Value payload, Emit& emit) = 0;
  virtual void chunk(ReqId id, const std::string& from, Value chunk, Emit& emit);
  virtual void chunks_done(ReqId id, const std::string& from, Emit& emit);
  virtual void drop(ReqId id) = 0;
  // Called after every event and when it asked to be: does what is due and says in how many ms it wants to be called
  // again (a batch that fills, a clock); kNever: not before the next event; 0: at once, after looking for events.
  virtual int tick(int64_t now_ms, Emit& emit);
  // The operator wants what is kept from request to request (not of requests that live) forgotten. What was done, for
  // people; kConflict: not now. By default kUnsupported: nothing is kept.
  virtual Result<std::string> flush_cache();

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
