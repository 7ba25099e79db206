// Where the spans of requests go, from the options of `serve` and from the environment variables that every exporter of
// OpenTelemetry knows (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS,
// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED); an option counts before its variable.
//
// Thread safety: free functions; they read the environment, as a start does.
#pragma once

#include <memory>
#include <string>

#include "api/request_spans.h"
#include "app/options.h"

namespace millrace {

// null: spans are not exported. kInvalidArgument for an endpoint that is no URL, or a list that is none.
Result<std::unique_ptr<api::RequestSpans>> make_request_spans(const ServeOptions& options);

// The traces' URL at a collector: `base` itself where it has a path, else its /v1/traces.
std::string traces_url(const std::string& base);

// "name=value,name=value", values percent-encoded, as OTEL_EXPORTER_OTLP_HEADERS and OTEL_RESOURCE_ATTRIBUTES have
// them.
Result<http::SpanAttributes> read_pairs(const std::string& variable, const std::string& text);

}  // namespace millrace
