#include "stages/loop/request_span.h"

#include <utility>

namespace millrace::loop {

void begin_span(const LoopContext& context, LoopRequest& request, std::string traceparent) {
  if (traceparent.empty()) return;
  request.trace = std::make_unique<RequestTrace>();
  request.trace->span = context.spans.begin(traceparent);
  request.trace->traceparent = std::move(traceparent);
}

void note_result(const LoopContext& context, LoopRequest& request) {
  if (request.trace && request.trace->span) request.trace->span->end_ns = context.spans.now_ns();
}

void end_span(const LoopContext& context, LoopRequest& request, const Status& why) {
  if (!request.trace || !request.trace->span) return;
  Span span = *std::exchange(request.trace->span, std::nullopt);
  uint64_t chunks_in = 0, chunks_out = 0;
  for (const auto& [from, edge] : request.in.edges) chunks_in += edge.next;
  for (const auto& [target, edge] : request.out.edges) chunks_out += edge.sent;
  const auto add = [&span](const char* name, uint64_t count) {
    span.attributes.emplace_back(name, static_cast<int64_t>(count));
  };
  add("millrace.stage.request", request.id.value);
  add("millrace.stage.chunks_in", chunks_in);
  add("millrace.stage.chunks_out", chunks_out);
  add("millrace.stage.relay_bytes_in", request.trace->relay_bytes_in);
  add("millrace.stage.relay_bytes_out", request.trace->relay_bytes_out);
  context.spans.end(std::move(span), why);
}

void add_refused_span(const LoopContext& context, const std::string& traceparent, const Status& why) {
  if (auto span = context.spans.begin(traceparent)) context.spans.end(std::move(*span), why);
}

}  // namespace millrace::loop
