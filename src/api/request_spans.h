// RequestSpans: what a request that generates becomes in a trace of OpenTelemetry: a span of the server, and below it
// the tokenizer, the wait for KV pages of another server, the time in the queue, the prefill and the decode. Names of
// attributes are those of its conventions for generative models (gen_ai.*) and of HTTP; ours begin with "millrace.".
//
// A request with a `traceparent` belongs to its caller's trace, and is recorded where the caller is; of the others a
// share is, chosen by the new trace's id.
//
// Owned by ApiState. Thread safety: any thread.
#pragma once

#include <memory>
#include <string_view>

#include "api/request_log.h"
#include "http/span_exporter.h"

namespace millrace::api {

class RequestSpans {
 public:
  RequestSpans(std::unique_ptr<http::SpanExporter> exporter, double share)
      : exporter_(std::move(exporter)), share_(share) {}

  // One that ended just now. `finish` as in the log.
  void add(const http::RequestLabel& request, std::string_view model, const RequestFigures& figures,
           std::string_view finish);
  // One that was refused before anything was generated.
  void add_refusal(const http::RequestLabel& request, std::string_view model, const Status& why);

  uint64_t exported() const { return exporter_->exported(); }
  uint64_t dropped() const { return exporter_->dropped(); }

 private:
  // Of the server; nothing where the request is not recorded.
  std::optional<http::Span> begin(const http::RequestLabel& request, std::string_view model, double seconds) const;

  const std::unique_ptr<http::SpanExporter> exporter_;
  const double share_;
};

}  // namespace millrace::api
