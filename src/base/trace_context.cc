#include "base/trace_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace millrace {
namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr std::size_t kTraceIdAt = 3, kTraceIdSize = 32, kSpanIdAt = 36, kSpanIdSize = 16, kFlagsAt = 53, kSize = 55;

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_id(std::string_view text) { return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos; }

// An id of zeros stands for none.
uint64_t random_bits() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  for (;;) {
    if (const uint64_t bits = generator(); bits != 0) return bits;
  }
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2), flags = header.substr(kFlagsAt, 2);
  if (!is_hex(version) || version == "ff" || !is_hex(flags)) return std::nullopt;
  // Later versions may add fields.
  if (header.size() > kSize && (version == "00" || header[kSize] != '-')) return std::nullopt;
  const std::string_view trace_id = header.substr(kTraceIdAt, kTraceIdSize);
  const std::string_view span_id = header.substr(kSpanIdAt, kSpanIdSize);
  if (!is_id(trace_id) || !is_id(span_id)) return std::nullopt;
  constexpr std::string_view kOddDigits = "13579bdf";  // the lowest bit of the flags is set
  return TraceContext{std::string(trace_id), std::string(span_id), kOddDigits.find(flags[1]) != kOddDigits.npos};
}

std::string make_traceparent(std::string_view trace_id, std::string_view span_id) {
  return fmt::format("00-{}-{}-01", trace_id, span_id);
}

std::string new_trace_id() { return fmt::format("{:016x}{:016x}", random_bits(), random_bits()); }

std::string new_span_id() { return fmt::format("{:016x}", random_bits()); }

}  // namespace millrace
