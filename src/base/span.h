// Spans of OpenTelemetry: what a request did where, and when. The component that makes one gives it to a SpanSink,
// which sends it to a collector (http/span_exporter.h); docs/deploy.md has the names and attributes.
//
// Thread safety: values; a sink is used from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace millrace {

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

// The clock of spans: of all processes of a host the same.
inline int64_t wall_clock_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Where finished spans go.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Never waits: what it has no capacity for is dropped.
  virtual void add(Span span) = 0;
  // Tests have a clock of their own.
  virtual int64_t now_ns() const { return wall_clock_ns(); }
};

}  // namespace millrace
