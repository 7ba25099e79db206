// PipelineEngine: what the api asks of a pipeline of any shape. pipeline/coordinator serves; tests bring a fake one.
//
// Every submitted request gets its news through its sink: pieces of the answer as they are made, then exactly one end.
// A request that is refused gets only its end, perhaps from inside submit().
//
// Thread safety: all functions from any thread. A sink is called by one thread at a time, in order, and must not call
// back into the engine. After cancel() returns, one piece that was already under way may still arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"
#include "stages/engine.h"

namespace millrace {

struct PipelineRequest {
  Value inputs;
  std::optional<std::vector<std::string>> terminals;  // who shall complete it; nullopt: as the pipeline's rule says
  int64_t timeout_ms = 0;                             // 0: the pipeline's limit alone
};

struct PipelineEvent {
  ReqId id;
  bool end = false;
  // A piece of the answer.
  std::string stage;
  std::string modality;
  uint64_t chunk_id = 0;  // from 0 without a gap, for each stage
  // The piece; at the end the result: of the one terminal, or a map of theirs by name.
  Value value;
  Status status;  // at the end: why there is no result
};

class PipelineEngine {
 public:
  using Sink = std::function<void(const PipelineEvent&)>;

  virtual ~PipelineEngine() = default;
  virtual ReqId submit(PipelineRequest request, Sink sink) = 0;
  // Ends the request without further news. Unknown or ended ids are ignored.
  virtual void cancel(ReqId id) = 0;
  virtual Health health() const = 0;
  // For people: the pipeline's name, and its picture as SVG.
  virtual const std::string& name() const = 0;
  virtual const std::string& picture() const = 0;
};

}  // namespace millrace
