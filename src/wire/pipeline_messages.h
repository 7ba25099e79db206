// The messages of pipelines between the coordinator and its stages, and the structs that messages share. What stages
// send for a request is in wire/chunk.h; the text engine's own messages are in wire/messages.h, which documents what
// holds for all.
//
// A third argument of v() in a visit() is the limit of that field: bytes of a string or blob, elements of a list. Both
// encode() and decode() keep it. What the fields must be together, and which strings are names, is for validate(): both
// sides of the codec ask it too; only threads that pass messages by reference go without. docs/wire-protocol.md
// describes what a receiver does with repeated, late and unknown ones.
//
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/blob.h"
#include "wire/generation.h"
#include "wire/limits.h"

namespace millrace::wire {

// The sender of a message, so that messages of a dead process are recognized: a stage's replica and incarnation, inside
// one session of the coordinator. A receiver ignores another session, and an incarnation that is not the one it knows
// of.
struct Origin {
  uint64_t session = 0;
  std::string stage;  // empty: the coordinator
  uint32_t replica = 0;
  uint64_t incarnation = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, session), v(2, stage, kMaxStageNameBytes), v(3, replica), v(4, incarnation);
  }
  friend bool operator==(const Origin&, const Origin&) = default;
};

// One tensor that was lifted out of a payload: where its bytes are.
struct TensorInfo {
  std::string path;   // in the payload: "encoder.states[0]"
  std::string dtype;  // the safetensors spelling: "BF16"
  std::vector<int64_t> shape;
  uint32_t part = 0;    // of the payload
  uint64_t offset = 0;  // in the part
  uint64_t size = 0;    // bytes

  template <typename V>
  void visit(V&& v) {
    v(1, path, kMaxPathBytes), v(2, dtype, kMaxDTypeBytes), v(3, shape, kMaxRank), v(4, part), v(5, offset), v(6, size);
  }
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// A value on its way (payload/packing.h). Without bytes in its tensors there is no part, and the tree is all. Parts of
// at most kMaxInlineBytes together travel in the message; then there is no relay and no descriptor.
struct Payload {
  Blob tree;                         // never empty: null is one byte
  std::vector<TensorInfo> tensors;   // each inside its part; one without bytes has part 0 and offset 0
  std::vector<uint64_t> part_bytes;  // each > 0 and used by a tensor
  std::string relay;                 // its backend: "shm"
  Blob descriptor;                   // what the backend's get() takes
  Blob inline_bytes;                 // of all parts, one after the other; empty: the relay has them

  bool in_relay() const { return !relay.empty(); }  // the parts are to be fetched

  template <typename V>
  void visit(V&& v) {
    v(1, tree, kMaxTreeBytes), v(2, tensors, kMaxTensors), v(3, part_bytes, kMaxParts), v(4, relay, kMaxRelayNameBytes);
    v(5, descriptor, kMaxDescriptorBytes), v(6, inline_bytes, kMaxInlineBytes);
  }
  friend bool operator==(const Payload&, const Payload&) = default;
};

// A failure always gets through: encode() cuts a message that is longer than kMaxErrorBytes and mends one that
// is not UTF-8.
struct Failure {
  StatusCode code = StatusCode::kInternal;  // never kOk
  std::string message;

  template <typename V>
  void visit(V&& v) {
    v(1, code), v(2, message, kMaxErrorBytes);
  }
  friend bool operator==(const Failure&, const Failure&) = default;
};

// Which replica of a stage serves a request. The coordinator chooses it once and the choice travels with the request,
// so that all senders of a fan-in agree. `incarnation` 0: the replica did not serve when it was chosen; the next one
// that does is meant.
struct RouteHop {
  std::string stage;
  uint32_t replica = 0;
  uint64_t incarnation = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, stage, kMaxStageNameBytes), v(2, replica), v(3, incarnation);
  }
  friend bool operator==(const RouteHop&, const RouteHop&) = default;
};

// coordinator -> entry stage. A repeated one of a known id is ignored.
struct Submit {
  ReqId id;
  Origin from;
  Payload payload;
  std::vector<std::string> terminals;  // of this request: stages that will complete it
  int64_t timeout_ms = 0;              // from now on; every stage releases the request when it is over
  std::vector<RouteHop> route;         // one hop for each stage that the request may need
  // A prompt that is tokenized already, for a stage that generates; the payload is then null.
  std::optional<TokenizedRequest> generate;
  // "": it is not traced. Else each stage gives a span below the one that is named here (base/trace_context.h).
  std::string traceparent;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, from), v(3, payload), v(4, terminals, kMaxTerminals), v(5, timeout_ms), v(6, route, kMaxRouteHops);
    v(7, generate), v(8, traceparent, kMaxTraceparentBytes);
  }
};

// A stage of a pipeline released everything it had of an aborted request.
struct AbortAck {
  ReqId id;
  Origin from;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, from);
  }
};

// coordinator -> stage: finish what runs within grace_ms, then end.
struct Shutdown {
  Origin from;
  int64_t grace_ms = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, grace_ms);
  }
};

struct RelayAddress {
  std::string relay;  // "shm"
  Blob address;       // Relay::address()

  template <typename V>
  void visit(V&& v) {
    v(1, relay, kMaxRelayNameBytes), v(2, address, kMaxRelayAddressBytes);
  }
  friend bool operator==(const RelayAddress&, const RelayAddress&) = default;
};

// How a stage is reached. Two stages share memory where host and boot agree, and a process where pid does too.
struct Peer {
  std::string stage;
  uint32_t replica = 0;
  uint64_t incarnation = 0;
  std::string endpoint;  // of its inbox
  std::string host;      // a name for people, and the boot id
  std::string boot;
  int64_t pid = 0;
  std::vector<RelayAddress> relays;
  bool up = true;
  std::string direct_endpoint;  // its inbox for rows of layers, or for KV pages; empty: it has none
  bool serves = false;          // in Peers: it is ready, and has the weights that it must have

  template <typename V>
  void visit(V&& v) {
    v(1, stage, kMaxStageNameBytes), v(2, replica), v(3, incarnation), v(4, endpoint, kMaxEndpointBytes);
    v(5, host, kMaxHostBytes), v(6, boot, kMaxHostBytes), v(7, pid), v(8, relays, kMaxPeerRelays), v(9, up);
    v(10, direct_endpoint, kMaxEndpointBytes), v(11, serves);
  }
  friend bool operator==(const Peer&, const Peer&) = default;
};

// stage -> coordinator: here I am. Repeated until the Welcome comes.
struct Register {
  Peer self;
  std::string reply_to;    // where the Welcome goes: the stage's inbox as the coordinator reaches it
  uint64_t spec_hash = 0;  // of the pipeline that it was started with
  // No field: the version of the frame that it came in. Another one than ours has the rest as read_other_version()
  // guesses.
  uint32_t wire_version = kWireVersion;

  template <typename V>
  void visit(V&& v) {
    v(1, self), v(2, reply_to, kMaxEndpointBytes), v(3, spec_hash);
  }
};

// coordinator -> stage: you are in, or why not. A member sends StageStatus every kHeartbeatMs; one that is silent for
// lease_ms has lost its lease: its requests have failed, and it must register again with a new incarnation.
struct Welcome {
  Origin from;
  std::string stage;
  uint64_t incarnation = 0;  // of the member that is meant
  std::optional<Failure> refused;
  int64_t lease_ms = 0;
  uint32_t wire_version = kWireVersion;  // no field: of the frame; a refusal is sent in the version that its reader has

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, stage, kMaxStageNameBytes), v(3, incarnation), v(4, refused), v(5, lease_ms);
  }
};

// coordinator -> stages: the replicas. The whole table each time; a lower epoch than the last one is old.
struct Peers {
  Origin from;
  uint64_t epoch = 0;
  std::vector<Peer> peers;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, epoch), v(3, peers, kMaxPeers);
  }
};

// Of its parts, where a relay moves them; else 0.
uint64_t relay_bytes(const Payload& payload);

// 1 to kMaxStageNameBytes letters, digits, '-' and '_'. Relays have such names too.
bool is_stage_name(std::string_view name);

// What the fields of one message must be together; kInvalidArgument names the field, the value seen and the one wanted.
Status validate(const Payload& payload);
Status validate(const Submit& message);
Status validate(const AbortAck& message);
Status validate(const Shutdown& message);
Status validate(const Register& message);
Status validate(const Welcome& message);
Status validate(const Peers& message);

}  // namespace millrace::wire
