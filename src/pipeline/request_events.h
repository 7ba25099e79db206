// What the coordinator and its clients exchange about requests. Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"
#include "stages/engine.h"
#include "wire/messages.h"

namespace millrace {

enum class RequestState : uint8_t { kPending = 0, kRunning = 1, kCompleted = 2, kFailed = 3, kAborted = 4 };

const char* request_state_name(RequestState state);  // "running"

struct RequestEvent {
  enum class Kind : uint8_t { kAccepted, kChunk, kEnd };
  Kind kind = Kind::kAccepted;
  ReqId id;
  std::string_view stage;  // chunk: of which terminal; the spec's name
  std::string modality;    // chunk
  uint64_t chunk_id = 0;
  Value value;                          // chunk; end that is OK: the result, of several terminals a map {stage: result}
  std::optional<wire::TextDelta> text;  // chunk: instead of the value
  RequestState state = RequestState::kRunning;
  Status status;  // end
};

// kFull: the event was not taken; the sink gets it again later. Accepted, and an end that is an error, are always
// taken.
enum class SinkAnswer : uint8_t { kTaken, kFull };
using PipelineSink = std::function<SinkAnswer(RequestEvent& event)>;

struct SubmitOptions {
  std::optional<std::vector<std::string>> terminals;  // that complete it; none: as the spec's rule decides, or all
  int64_t timeout_ms = 0;                             // 0: the spec's; never more than that
  bool later = false;                                 // the inputs come by begin()
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
  std::size_t open_commands = 0;

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

}  // namespace millrace
