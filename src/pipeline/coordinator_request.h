// What the coordinator and its clients say to each other about a request, and what it keeps of one.
//
// Thread safety: values; Arrivals locks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"
#include "pipeline/placement.h"
#include "stages/stage_graph.h"
#include "wire/messages.h"

namespace millrace {

enum class RequestState : uint8_t { kPending = 0, kRunning = 1, kCompleted = 2, kFailed = 3, kAborted = 4 };

const char* request_state_name(RequestState state);  // "running"

struct RequestEvent {
  enum class Kind : uint8_t { kAccepted, kChunk, kEnd };
  Kind kind = Kind::kAccepted;
  ReqId id;
  std::string stage;     // chunk: of which terminal
  std::string modality;  // chunk
  uint64_t chunk_id = 0;
  Value value;                          // chunk; end that is OK: the result, of several terminals a map {stage: result}
  std::optional<wire::TextDelta> text;  // chunk: instead of the value
  RequestState state = RequestState::kRunning;
  Status status;  // end
};

// kFull: the event was not taken; it is said again later. Accepted, and an end that is an error, are always taken.
enum class SinkAnswer : uint8_t { kTaken, kFull };
using PipelineSink = std::function<SinkAnswer(RequestEvent& event)>;

struct SubmitOptions {
  std::optional<std::vector<std::string>> terminals;  // that complete it; none: the spec's rule says, or all
  int64_t timeout_ms = 0;                             // 0: the spec's; never more than that
  bool later = false;                                 // the inputs come by begin()
};

struct PipelineHealth {
  bool ready = false;                     // requests are accepted now
  bool draining = false;                  // shutting down
  std::string reason;                     // why not ready; or who is missing all the same
  std::vector<wire::StageStatus> stages;  // one for each replica, in the order of the spec
};

// What is open now: after quiescence, all of the first group are 0. The others count since the start.
struct CoordinatorBooks {
  std::size_t live = 0;
  std::size_t pending = 0;
  std::size_t fetches = 0;  // payloads on their way to us
  std::size_t queued_chunks = 0;
  std::size_t queued_bytes = 0;
  std::size_t open_aborts = 0;
  std::size_t awaited_acks = 0;
  std::size_t open_orders = 0;

  uint64_t submitted = 0;
  uint64_t refused = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t aborted = 0;
  uint64_t late = 0;      // chunks of requests that are not live
  uint64_t repeated = 0;  // chunks that came twice
  uint64_t ignored = 0;   // chunks from an unexpected sender: no terminal of the request, or not its replica
  uint64_t fenced = 0;    // messages of fenced incarnations
  uint64_t unknown = 0;   // messages of stages that are not in the spec, and messages that are not for a coordinator
  uint64_t aborts_given_up = 0;
};

// ---- what the coordinator keeps

struct Piece {
  std::string modality;
  uint64_t chunk_id = 0;
  std::size_t bytes = 0;
  std::optional<Value> value;           // once it is here
  std::optional<wire::TextDelta> text;  // instead of the value
  bool here() const { return value || text; }
  bool lent = false;  // its bytes are a relay's
};

// What one terminal has said about a request.
struct Feed {
  uint64_t next_chunk = 0;         // the number that is wanted
  std::deque<Piece> pieces;        // that the sink has not taken
  std::optional<uint64_t> chunks;  // how many there are before the result, when that has come
  std::optional<Value> result;     // once it is here
  uint64_t taken = 0;              // chunks, by the sink
  uint64_t acked = 0;              // of these, told the stage
  std::size_t taken_bytes = 0;     // since then
  int64_t ack_gap_ms = 0;          // between the last word and its repetition
  int64_t ack_again_ms = 0;
  // Everything of it has come; its stage is not needed any more.
  bool settled() const {
    if (!chunks || !result) return false;
    for (const Piece& piece : pieces) {
      if (!piece.here()) return false;
    }
    return true;
  }
};

struct LiveRequest {
  ReqId id;
  std::function<SinkAnswer(RequestEvent&)> sink;
  RequestState state = RequestState::kPending;
  wire::Message submit;  // while pending
  int64_t deadline_ms = 0;
  int64_t timeout_ms = 0;
  Placement::Route route;     // its replicas
  int64_t hinted_tokens = 0;  // that count in their loads
  StageSet terminals = 0;
  std::size_t entry = 0;              // the stage that it is submitted to
  StageSet open = 0;                  // its terminals that are not settled
  std::vector<StageSet> gathered;     // by stage: the sources from which it has everything
  std::map<std::size_t, Feed> feeds;  // by stage
  std::size_t fetches = 0;
  std::size_t queued_chunks = 0;
  std::size_t queued_bytes = 0;
};

// The replicas of a stage, which follow each other.
struct StageSeats {
  uint32_t replicas = 1;
  std::size_t first_seat = 0;
};

// What the data plane brought, on whatever thread.
struct Arrival {
  ReqId id;
  std::size_t stage = 0;
  std::optional<uint64_t> chunk;  // none: the result
  bool wanted = true;             // false: fetched only so that its sender is rid of it
  Result<Value> value = Value();
};

class Arrivals {
 public:
  void add(Arrival arrival) {
    std::function<void()> wake;
    {
      std::lock_guard lock(mutex_);
      arrivals_.push_back(std::move(arrival));
      wake = wake_;
    }
    if (wake) wake();
  }
  std::vector<Arrival> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(arrivals_, {});
  }
  void on_arrival(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::function<void()> wake_;
};

}  // namespace millrace
