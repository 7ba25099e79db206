// Spans of OpenTelemetry, as OTLP/HTTP takes them in JSON (opentelemetry-proto 1.x, trace/v1/trace.proto; ids are
// hexadecimal there, integers of 64 bits are texts).
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string>

#include "base/span.h"

namespace millrace::http {

// The body of an ExportTraceServiceRequest. `resource`: the sender (service.name, ...).
std::string otlp_json(const SpanAttributes& resource, const std::string& version, std::span<const Span> spans);

}  // namespace millrace::http
