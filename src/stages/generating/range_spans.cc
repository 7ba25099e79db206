#include "stages/generating/range_spans.h"

#include <fmt/format.h>

#include "base/trace_context.h"

namespace millrace {

void RangeSpans::begin(ReqId request, const std::string& traceparent, Runner& runner) {
  std::optional<Span> span = spans_.begin(traceparent);
  if (span && runner.begin_trace(request)) open_.insert_or_assign(request, std::move(*span));
}

void RangeSpans::give(ReqId request, Runner& runner) {
  const auto open = open_.extract(request);
  if (open.empty()) return;
  for (const RangeFigures& range : runner.end_trace(request)) {
    Span span = open.mapped();
    span.span_id = new_span_id();
    span.name = fmt::format("range {}", range.range);
    span.begin_ns = range.begin_ns;
    span.end_ns = range.end_ns;
    span.attributes.insert(span.attributes.end(), {{"millrace.range.index", int64_t{range.range}},
                                                   {"millrace.range.parts", range.parts},
                                                   {"millrace.range.rows", range.rows},
                                                   {"millrace.range.row_bytes_in", range.row_bytes},
                                                   {"millrace.range.compute_us", range.compute_us}});
    spans_.end(std::move(span), ok_status());
  }
}

}  // namespace millrace
