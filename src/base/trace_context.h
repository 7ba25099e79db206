// The `traceparent` header of W3C Trace Context: the trace that a request belongs to, and its caller's span.
//
//   traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::size_t kTraceparentBytes = 55;  // of the version that is written here

struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits, not all 0
  std::string span_id;   // 16 of them: the caller's
  bool sampled = false;  // the caller records its span
};

// Nothing for a header that is not well-formed: the request then begins a trace of its own, as the standard wants.
std::optional<TraceContext> parse_traceparent(std::string_view header);

// Of a request that is recorded: its trace, and the span that those of its parts have for their parent.
std::string make_traceparent(std::string_view trace_id, std::string_view span_id);

// New ones, random.
std::string new_trace_id();
std::string new_span_id();

}  // namespace millrace
