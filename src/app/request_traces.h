// Where spans go, from the options of `serve` and `stage` and from the environment variables that every exporter of
// OpenTelemetry knows (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED); an option counts before its variable.
//
// Thread safety: free functions; they read the environment, as a start does.
#pragma once

#include <memory>
#include <string>

#include "api/request_spans.h"
#include "app/options.h"
#include "http/span_exporter.h"

namespace millrace {

// `endpoint`: the option. null: spans are not exported. kInvalidArgument for an endpoint that is no URL, or a list that
// is none.
Result<std::shared_ptr<http::SpanExporter>> make_span_exporter(const std::string& endpoint);

// Of a server: its requests, and those of its stages that run in this process. Both null: spans are not exported.
struct Traces {
  std::shared_ptr<http::SpanExporter> exporter;
  std::shared_ptr<api::RequestSpans> requests;
};
Result<Traces> make_traces(const ServeOptions& options);

// The traces' URL at a collector: `base` itself where it has a path, else its /v1/traces.
std::string traces_url(const std::string& base);

// "name=value,name=value", values percent-encoded, as OTEL_EXPORTER_OTLP_HEADERS and OTEL_RESOURCE_ATTRIBUTES have
// them.
Result<SpanAttributes> read_pairs(const std::string& variable, const std::string& text);

}  // namespace millrace
