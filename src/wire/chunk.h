// ChunkBatch: everything that one stage sends to one receiver in one step, for all requests, in one frame. AckBatch
// goes the other way and counts what the receiver has taken.
//
// What a stage sends for a request along one edge (to one stage, or to the coordinator) is one sequence, numbered from
// 0 without a gap: the values or deltas of a stream, the end of the stream (to a stage), the result. Failure,
// InputsComplete and SentCount are outside of the sequence. docs/wire-protocol.md has what a receiver does with each.
//
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/boxed.h"
#include "base/ids.h"
#include "base/status.h"
#include "wire/generation.h"
#include "wire/limits.h"
#include "wire/pipeline_messages.h"

namespace millrace::wire {

// What the receiver must know of a request; in chunk 0 of an edge between stages, and only there.
struct Opening {
  std::vector<std::string> terminals;  // as in Submit
  int64_t timeout_ms = 0;              // what is left of it when the chunk is put into its batch
  std::vector<RouteHop> route;         // as in Submit
  std::string traceparent;             // as in Submit

  template <typename V>
  void visit(V&& v) {
    v(1, terminals, kMaxTerminals), v(2, timeout_ms), v(3, route, kMaxRouteHops);
    v(4, traceparent, kMaxTraceparentBytes);
  }
};

// One value of a stream.
struct StreamValue {
  std::string modality;  // to the coordinator: "text", "audio"
  Payload payload;

  template <typename V>
  void visit(V&& v) {
    v(1, modality, kMaxModalityBytes), v(2, payload);
  }
};

// To a stage: the stream has no more chunks.
struct StreamEnd {
  template <typename V>
  void visit(V&&) {}
};

// Along `next`, or of a terminal to the coordinator: the last chunk of its edge.
struct StageResult {
  Payload payload;

  template <typename V>
  void visit(V&& v) {
    v(1, payload);
  }
};

// To the coordinator: nothing more of these stages is needed here for the request: their streams and results are here,
// or the sender's own result is. Each list has all of the one before. The loss of such a stage costs the request
// nothing here.
struct InputsComplete {
  std::vector<std::string> sources;

  template <typename V>
  void visit(V&& v) {
    v(1, sources, kMaxSources);
  }
};

// The answer to a repeated Ack: so many numbered chunks of this edge have left before it. A receiver that has fewer has
// lost some, which no later number would show while the sender's window is full, or while it computes.
struct SentCount {
  uint64_t count = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, count);
  }
};

// The position in this list is the body's number on the wire: append only.
using ChunkBody =
    std::variant<TokenDelta, TextDelta, StreamValue, StreamEnd, StageResult, Failure, InputsComplete, SentCount>;

struct Chunk {
  ReqId id;
  uint64_t seq = 0;  // of a body that has no number: 0
  Boxed<Opening> opening;
  ChunkBody body;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, seq), v(3, opening), v(4, body);
  }
};

struct ChunkBatch {
  Origin from;
  std::string to;  // the receiver's stage; empty: the coordinator
  std::vector<Chunk> chunks;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, to, kMaxStageNameBytes), v(3, chunks, kMaxBatchEntries);
  }
};

// The receiver has taken the chunks 0 to count - 1 of the edge. Counts only grow, so one that is lost is made good by
// the next.
struct Ack {
  ReqId id;
  uint64_t count = 0;
  bool repeated = false;  // nothing has come since: the sender answers with its SentCount, or a Failure when it is done

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, count), v(3, repeated);
  }
};

// Stage -> stage, against the chunks; coordinator -> terminal: what the client has taken.
struct AckBatch {
  Origin from;
  std::string to;  // the stage that sent the chunks
  std::vector<Ack> acks;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, to, kMaxStageNameBytes), v(3, acks, kMaxBatchEntries);
  }
};

// Whether it has a number in the sequence of its edge.
inline bool is_numbered(const ChunkBody& body) {
  return !std::holds_alternative<Failure>(body) && !std::holds_alternative<InputsComplete>(body) &&
         !std::holds_alternative<SentCount>(body);
}
// A value or a delta of a stream.
inline bool is_stream_chunk(const ChunkBody& body) {
  return std::holds_alternative<StreamValue>(body) || std::holds_alternative<TokenDelta>(body) ||
         std::holds_alternative<TextDelta>(body);
}
// nullptr: the body has none.
const Payload* payload_of(const ChunkBody& body);

// As in pipeline_messages.h. A batch that moved by reference is checked chunk by chunk, so that a bad one costs its own
// request alone.
Status validate(const Chunk& chunk, bool to_coordinator);
Status validate(const ChunkBatch& message);
Status validate(const AckBatch& message);

}  // namespace millrace::wire
