#include "stages/stage_spans.h"

#include <algorithm>

#include "base/trace_context.h"

namespace millrace {

std::optional<Span> StageSpans::begin(const std::string& traceparent) const {
  if (!sink_ || traceparent.empty()) return std::nullopt;
  const auto parent = parse_traceparent(traceparent);
  if (!parent) return std::nullopt;  // of a message that came by reference, which nothing has checked
  return Span{.trace_id = parent->trace_id,
              .span_id = new_span_id(),
              .parent_id = parent->span_id,
              .name = "stage " + stage_,
              .begin_ns = sink_->now_ns(),
              .attributes = {{"millrace.stage.name", stage_},
                             {"millrace.stage.worker", worker_},
                             {"millrace.stage.replica", int64_t{replica_}}}};
}

void StageSpans::end(Span span, const Status& why) const {
  if (!why.ok() || span.end_ns == 0) span.end_ns = sink_->now_ns();
  span.end_ns = std::max(span.begin_ns, span.end_ns);  // a clock may be set back
  if (!why.ok()) {
    span.failed = true;
    span.error = why.message();
    span.attributes.emplace_back("error.type", std::string(status_code_name(why.code())));
  }
  sink_->add(std::move(span));
}

}  // namespace millrace
