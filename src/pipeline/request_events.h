// What the coordinator and its clients exchange about requests. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stages/pipeline_engine.h"

namespace millrace {

// What is open now: after quiescence, all of the first group are 0. The others count since the start.
struct CoordinatorBooks {
  std::size_t live = 0;
  std::size_t pending = 0;  // that have not begun
  std::size_t running = 0;
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
  uint64_t lost = 0;  // of those that failed: a message between the stages was lost
};

}  // namespace millrace
