// RangeSpans: the spans of the ranges of a layer split, one for each range and traced request, below the request's
// server as those of stages are. The process of the first range gives them all, from what its runner knows.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>

#include "runner/runner.h"
#include "stages/stage_spans.h"

namespace millrace {

class RangeSpans {
 public:
  explicit RangeSpans(StageSpans spans) : spans_(std::move(spans)) {}

  // Before the scheduler gets the request.
  void begin(ReqId request, const std::string& traceparent, Runner& runner);
  // It has ended, however. Ids that did not begin are ignored.
  void end(ReqId request, Runner& runner) {
    if (!open_.empty()) give(request, runner);
  }

 private:
  void give(ReqId request, Runner& runner);

  const StageSpans spans_;
  std::unordered_map<ReqId, Span> open_;  // as the span of each range begins
};

}  // namespace millrace
