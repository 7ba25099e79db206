// RequestSpans: what a request becomes in a trace of OpenTelemetry: a span of the server, which begins when the request
// is accepted; below it those of the stages that handle it (stages/loop/stage_spans.h), and of one that generates also
// the tokenizer, the wait for KV pages of another server, the time in the queue, the prefill and the decode. Names of
// attributes are those of its conventions for generative models (gen_ai.*) and of HTTP; ours begin with "millrace.".
//
// A request with a `traceparent` belongs to its caller's trace, and is recorded where the caller is; of the others a
// share is, chosen by the new trace's id.
//
// Owned by ApiState. Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "api/request_log.h"
#include "base/status.h"
#include "base/trace_context.h"
#include "http/span_exporter.h"

namespace millrace::api {

// A server's span that is open.
struct ServerSpan {
  Span span;
  std::string path;
  // What goes with the request to its stages.
  std::string traceparent() const { return make_traceparent(span.trace_id, span.span_id); }
};

class RequestSpans {
 public:
  RequestSpans(std::shared_ptr<http::SpanExporter> exporter, double share)
      : exporter_(std::move(exporter)), share_(share) {
    CHECK(exporter_ != nullptr && share_ >= 0 && share_ <= 1);
  }

  // Of a request that was accepted so long ago; nothing where it is not recorded.
  std::optional<ServerSpan> begin(const http::RequestLabel& request, double seconds_ago) const;
  // It generated, and ended just now. `finish` as in the log.
  void end(ServerSpan server, std::string_view model, const RequestFigures& figures, std::string_view finish);
  // It was refused before anything was generated, or is of a pipeline that does not generate.
  void end(ServerSpan server, std::string_view model, const Status& status);

  uint64_t exported() const { return exporter_->exported(); }
  uint64_t dropped() const { return exporter_->dropped(); }

 private:
  const std::shared_ptr<http::SpanExporter> exporter_;
  const double share_;
};

}  // namespace millrace::api
