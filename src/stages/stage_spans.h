// StageSpans: the spans of one replica of a stage, one for each traced request that it handles (base/span.h). They lie
// below the span of the request's server, whose traceparent came with the request; so a request that is not traced has
// none, and costs nothing.
//
// Owner: a stage loop; the worker has a copy. Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/span.h"
#include "base/status.h"

namespace millrace {

class StageSpans {
 public:
  StageSpans() = default;  // of a process that exports none
  StageSpans(std::shared_ptr<SpanSink> sink, std::string stage, std::string worker, uint32_t replica)
      : sink_(std::move(sink)), stage_(std::move(stage)), worker_(std::move(worker)), replica_(replica) {}

  // It begins now. `traceparent` "": the request is not traced. nullopt: there is none.
  std::optional<Span> begin(const std::string& traceparent) const;
  int64_t now_ns() const { return sink_->now_ns(); }  // where there is a span
  // It is done, and goes. `why` not OK: it failed. Its end is now, or end_ns where that is set.
  void end(Span span, const Status& why) const;

 private:
  std::shared_ptr<SpanSink> sink_;  // null: none are exported
  std::string stage_, worker_;
  uint32_t replica_ = 0;
};

}  // namespace millrace
