// Spans of OpenTelemetry, as OTLP/HTTP takes them in JSON (opentelemetry-proto 1.x, trace/v1/trace.proto; ids are
// hexadecimal there, integers of 64 bits are texts).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::http {

using SpanValue = std::variant<std::string, int64_t, double, std::vector<std::string>>;
using SpanAttributes = std::vector<std::pair<std::string, SpanValue>>;

enum class SpanKind : uint8_t { kInternal = 1, kServer = 2 };

struct Span {
  std::string trace_id, span_id, parent_id;  // hexadecimal; parent_id: empty for the first of a trace
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  int64_t begin_ns = 0, end_ns = 0;  // since 1970, UTC
  SpanAttributes attributes;
  bool failed = false;
  std::string error;  // of one that failed
};

// The body of an ExportTraceServiceRequest. `resource`: the sender (service.name, ...).
std::string otlp_json(const SpanAttributes& resource, const std::string& version, std::span<const Span> spans);

}  // namespace millrace::http
