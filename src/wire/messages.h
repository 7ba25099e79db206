// Every message between stages, grouped by the stage that receives it. The same structs travel by reference between
// threads (--placement single) and as versioned msgpack maps between processes (wire/codec.h).
//
// Submit (coordinator -> stage), ChunkBatch and AckBatch (stage -> stage, stage -> coordinator and back), AbortRequest
// and AbortAck, RequestProbe and RequestReport, Register, Welcome, Peers and StageStatus (membership), AdminRequest and
// AdminReply.
// docs/wire-protocol.md has them byte by byte.
//
// Field numbers in the visit() functions are the wire format: append only.
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/chunk.h"
#include "wire/generation.h"
#include "wire/layer_messages.h"
#include "wire/media_messages.h"
#include "wire/pipeline_messages.h"
#include "wire/probe_messages.h"
#include "wire/transfer_messages.h"

namespace millrace::wire {

// ---- to the scheduler -----------------------------------------------------------------------------------------------

// Stop working on a request and free its pages. Idempotent; unknown ids are ignored. The scheduler answers with the
// request's finish (kAborted), which is the acknowledgement.
struct AbortRequest {
  ReqId id;

  template <typename V>
  void visit(V&& v) {
    v(1, id);
  }
};

enum class AdminAction : uint8_t {
  kFlushCache = 0,    // forget all cached pages; waits up to timeout_ms for idleness, then kConflict
  kStartProfile = 1,  // record a trace; `argument`: the folder that receives the file
  kStopProfile = 2,   // write it; the reply's message is its path
  // The next five are for stages with weights (docs/weights.md).
  kStageWeights = 3,   // load the model folder `argument` beside the serving weights, as `weight_version`
  kDropWeights = 4,    // forget what is staged, or will be
  kSwitchWeights = 5,  // serve the staged `weight_version`; `policy` and `flush_cache` decide what becomes of the rest
  kPause = 6,          // plan no more steps; `policy`: what becomes of running requests
  kContinue = 7,
  // Those of a trainer's process group (stages/generating/live_commands.h).
  kJoinGroup = 8,        // `argument`: the group, as JSON
  kLeaveGroup = 9,       // `argument`: its name
  kReceiveWeights = 10,  // receive the buckets `argument`, as JSON, as `weight_version`; replies when it can begin
  kAwaitWeights = 11,    // replies when they are staged
  kHoldWeights = 12,     // replies when they are staged no more
  kInspectWeights = 13,  // show what serves (stages/generating/weight_inspector.h)
  kWriteWeights = 14,    // write `weight_version`, which serves, as a model folder; the reply's message is its path
  kShowState = 15,       // for stages with a scheduler: what it does now, as JSON (stages/generating/state_json.h)
  kShowLog = 16,         // for the process: its last lines, as JSON, and it keeps them for a while (stages/log_lines.h)
};

// What becomes of requests when the weights are switched, or generation is paused.
enum class InFlightPolicy : uint8_t {
  kInPlace = 0,  // they go on, with the KV that they have
  kRetract = 1,  // they wait again, keep their tokens, and compute all KV anew
  kAbort = 2,    // they end with kAborted, those that wait too
};

// An order of the operator to one scheduler. Answered by exactly one AdminReply, sent to the coordinator.
struct AdminRequest {
  uint64_t id = 0;
  AdminAction action = AdminAction::kFlushCache;
  std::string argument;
  int64_t timeout_ms = 0;
  uint64_t weight_version = 0;
  InFlightPolicy policy = InFlightPolicy::kInPlace;
  bool flush_cache = false;  // with kSwitchWeights: what is cached of other versions is freed at once
  // With kStageWeights: what the weights must be, or they are refused with kConflict; 0: whatever the source has.
  uint64_t weights_checksum = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, action), v(3, argument), v(4, timeout_ms), v(5, weight_version), v(6, policy), v(7, flush_cache);
    v(8, weights_checksum);
  }
};

// ---- to the coordinator --------------------------------------------------------------------------------------------

enum class StageState : uint8_t { kLoading = 0, kReady = 1, kStalled = 2, kFailed = 3, kDraining = 4 };

const char* stage_state_name(StageState state);  // "ready"

// One number of a stage for /metrics, by the name that stands there without the prefix: "num_retractions_total".
struct Metric {
  std::string name;
  double value = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, name), v(2, value);
  }
};

// A stage's heartbeat, sent every kHeartbeatMs and at every change of state. The coordinator's /ready is made from
// these.
struct StageStatus {
  std::string stage;  // "scheduler" ("scheduler-1" and so on where there are more), "detokenizer"
  uint64_t incarnation = 0;
  StageState state = StageState::kLoading;
  std::string message;  // loading: what; failed: why
  double progress = 0;  // loading: 0..1
  uint64_t steps = 0;   // batches computed so far: a stage that is busy and whose steps stand still is stalled
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;
  int32_t page_size = 0;
  uint64_t weight_version = 0;
  std::vector<Metric> metrics;
  uint32_t replica = 0;      // which one of several equal stages, from 0
  uint64_t peers_epoch = 0;  // of the last table of Peers that it has; 0: none
  // Of all bytes of the weights that serve, and of the model's small files (tokenizer, configuration) as they were
  // loaded: replicas whose checksums differ give different answers. 0: the stage has none.
  uint64_t weights_checksum = 0;
  uint64_t text_checksum = 0;
  uint64_t frozen_checksum = 0;  // the same of weights that no update changes: towers, a talker, a range of layers

  template <typename V>
  void visit(V&& v) {
    v(1, stage), v(2, incarnation), v(3, state), v(4, message), v(5, progress), v(6, steps), v(7, running);
    v(8, waiting), v(9, pages_total), v(10, pages_free), v(11, pages_cached), v(12, page_size);
    v(13, weight_version), v(14, metrics), v(15, replica), v(16, peers_epoch);
    v(17, weights_checksum), v(18, text_checksum), v(19, frozen_checksum);
  }
};

// What a stage adds to its reply to a command about weights.
struct WeightsReply {
  uint64_t checksum = 0;         // of the weights that were staged, or serve now; 0: unknown
  uint32_t paused_requests = 0;  // that waited in a pause when the weights were switched

  template <typename V>
  void visit(V&& v) {
    v(1, checksum), v(2, paused_requests);
  }
};

struct AdminReply {
  uint64_t id = 0;
  std::string stage;  // that answers
  StatusCode code = StatusCode::kOk;
  std::string message;
  WeightsReply weights{};

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, stage), v(3, code), v(4, message), v(5, weights);
  }
};

using Message =
    std::variant<AbortRequest, StageStatus, AdminRequest, AdminReply, Submit, AbortAck, Shutdown, Register, Welcome,
                 Peers, ChunkBatch, AckBatch, LayerHello, LayerStep, LayerResult, LayerAlive, KvWant, KvPart, KvTaken,
                 KvEnd, EncodeMedia, FeaturesPart, EncodeEnd, RequestProbe, RequestReport>;

// The number of each type of this list on the wire: append only. 0, 2, 3, 8 to 11 and 17 were types of versions up to
// 7, and are given to no other.
inline constexpr std::array<uint8_t, std::variant_size_v<Message>> kMessageTypes = {
    1, 4, 5, 6, 7, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32};

inline uint8_t message_type(const Message& message) { return kMessageTypes[message.index()]; }

}  // namespace millrace::wire
