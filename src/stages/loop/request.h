// LoopRequest: all that a stage loop has of one live request, and the records of its edges. Plain data; the rules are
// in the files beside it. Thread safety: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/span.h"
#include "payload/packing.h"
#include "stages/loop/worker_host.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace millrace::loop {

// Which replica is at the other end of an edge: chosen by the sender, then kept.
struct EdgeEnd {
  uint32_t replica = 0;
  uint64_t incarnation = 0;
  friend bool operator==(const EdgeEnd&, const EdgeEnd&) = default;
};

// What one stage sends here for the request. Chunks come in order without a gap; bytes may come in any order; the
// worker gets the chunks in order.
struct InEdge {
  // What has come (InputStreams).
  EdgeEnd source;
  uint64_t next = 0;                             // the number that is wanted
  std::map<uint64_t, std::optional<Body>> held;  // by number: being fetched, or waiting for its turn
  bool streams = false;                          // a value, a delta or the end of the stream has come
  std::optional<uint64_t> total;                 // of values and deltas, when the end has come
  bool end_queued = false;                       // chunks_done() is on its way to the worker
  bool has_result = false;                       // its header has come: the last chunk of the edge
  bool result_here = false;                      // and its bytes

  // What the worker has taken of it (WorkQueue).
  uint64_t delivered = 0;  // values and deltas given to its host

  // What its sender knows of that (InputAcks).
  uint64_t acked = 0;          // numbers acknowledged
  uint64_t swept = 0;          // `next` when silent senders were last looked for
  uint32_t silent_sweeps = 0;  // since a chunk has come

  // Nothing more of a stream has to come, or its result has.
  bool is_complete() const { return total.has_value() || has_result; }
  // Numbers from 0 that need nothing of the sender any more.
  uint64_t taken() const {
    const bool is_ended = total && delivered == *total;
    if (streams && !is_ended) return delivered;
    return delivered + (is_ended ? 1 : 0) + (result_here ? 1 : 0);
  }
};

struct InPayload {
  std::optional<Value> value;  // empty while it is fetched, and again when it was merged
  bool here = false;
};

struct OutItem {
  enum class Kind : uint8_t { kValue, kEnd, kResult };
  Kind kind = Kind::kResult;
  std::string modality;  // of a value to the client
  Lifted lifted;
  std::optional<wire::ChunkBody> delta;  // instead of `lifted`, of a value
  std::size_t size_bytes = 0;
  std::optional<wire::Chunk> chunk;  // from the put on: a refused send is repeated with the same descriptor

  bool has_payload() const { return kind != Kind::kEnd && !delta; }
};

// Everything that goes to one stage, or to the client, for one request, in order.
struct OutEdge {
  std::string target;  // empty: the client
  std::optional<EdgeEnd> to;
  uint64_t sent = 0;     // numbers in a batch: the next chunk's
  uint64_t flushed = 0;  // of these, in a batch that has left
  uint64_t acked = 0;
  bool ended = false;                      // the end of the stream, or the result, is among those that were sent
  bool waiting = false;                    // in the loop's list of edges to try again
  std::optional<int64_t> absent_since_ms;  // the replica is not in the table, or not connected
  std::deque<std::size_t> client_bytes;    // of each chunk that the client has not taken; kMaxUnackedChunks at most
  std::size_t client_bytes_sum = 0;
  std::deque<OutItem> queue;

  // It has begun, and nothing of it waits: one more chunk of its stream may go into the receiver's batch at once.
  bool may_append() const {
    return sent > 0 && !ended && !waiting && queue.empty() && sent - acked < wire::kMaxUnackedChunks;
  }
};

// The four records of a request, each written by the parts that it names.

// What has come for it. Payloads: FanIn. Edges, and what was reported of them: InputStreams.
struct RequestInputs {
  std::map<std::string, InPayload> payloads;  // by source
  std::optional<std::vector<std::string>> expected;
  bool started = false;                 // the payload is whole and on its way to the worker
  std::size_t complete = 0;             // sources that were reported to the coordinator as such
  std::map<std::string, InEdge> edges;  // by source

  bool fetches_payload() const {
    return std::any_of(payloads.begin(), payloads.end(), [](const auto& entry) { return !entry.second.here; });
  }
};

// Where it stands with the worker: WorkQueue.
struct RequestWork {
  enum class State : uint8_t { kUnknown, kKnown, kDropping, kGone };
  State state = State::kUnknown;
  bool resulted = false;          // the worker has put out its result
  bool in_line = false;           // `waiting` is tried again
  std::deque<WorkEvent> waiting;  // what the worker's host has not taken yet

  bool is_over() const { return state == State::kGone && waiting.empty(); }
};

// What goes out for it: EdgeSender.
struct RequestOutputs {
  std::optional<std::vector<std::string>> stream_targets;  // known from the start on
  std::map<std::string, OutEdge> edges;                    // by target
  std::size_t waiting_chunks = 0;
  std::size_t waiting_bytes = 0;
  std::size_t waiting_client_bytes = 0;  // of these, to the client
  bool congested = false;                // and the worker's host knows
};

// Of a request that is traced: request_span.cc; the bytes in by Intake, those out by EdgeSender.
struct RequestTrace {
  std::string traceparent;   // of the server's span; goes on to the next stages
  std::optional<Span> span;  // nullopt: this process exports none, or it has gone
  uint64_t relay_bytes_in = 0, relay_bytes_out = 0;
};

struct LoopRequest {
  enum class Phase : uint8_t { kLive, kEnding };

  // As it came: id and deadline by RequestTable, the others by Intake.
  ReqId id;
  int64_t deadline_ms = 0;
  std::vector<std::string> terminals;
  std::vector<wire::RouteHop> route;  // the replicas that serve it

  // How it ends: the phase by RequestTable, the rest by RequestEnds.
  Phase phase = Phase::kLive;
  bool aborted = false;  // an AbortAck is owed when all is over

  std::unique_ptr<RequestTrace> trace;  // null: it is not traced

  RequestInputs in;
  RequestWork work;
  RequestOutputs out;

  bool is_live() const { return phase == Phase::kLive; }
};

}  // namespace millrace::loop
