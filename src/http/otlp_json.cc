#include "http/otlp_json.h"

#include <fmt/format.h>

#include <iterator>

#include "base/json.h"

namespace millrace::http {
namespace {

constexpr int kStatusError = 2;

void append_text(std::string& out, const std::string& text) {
  out += R"({"stringValue":)";
  json_append_string(out, text);
  out += '}';
}

void append_value(std::string& out, const SpanValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    append_text(out, *text);
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    out += R"({"arrayValue":{"values":[)";
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out += ',';
      append_text(out, (*list)[i]);
    }
    out += "]}}";
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    fmt::format_to(std::back_inserter(out), R"({{"intValue":"{}"}})", *integer);
  } else {
    fmt::format_to(std::back_inserter(out), R"({{"doubleValue":{}}})", std::get<double>(value));
  }
}

void append_attributes(std::string& out, const SpanAttributes& attributes) {
  out += R"("attributes":[)";
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    out += i == 0 ? R"({"key":)" : R"(,{"key":)";
    json_append_string(out, attributes[i].first);
    out += R"(,"value":)";
    append_value(out, attributes[i].second);
    out += '}';
  }
  out += ']';
}

void append_span(std::string& out, const Span& span) {
  fmt::format_to(std::back_inserter(out), R"({{"traceId":"{}","spanId":"{}")", span.trace_id, span.span_id);
  if (!span.parent_id.empty()) fmt::format_to(std::back_inserter(out), R"(,"parentSpanId":"{}")", span.parent_id);
  out += R"(,"name":)";
  json_append_string(out, span.name);
  fmt::format_to(std::back_inserter(out), R"(,"kind":{},"startTimeUnixNano":"{}","endTimeUnixNano":"{}",)",
                 static_cast<int>(span.kind), span.begin_ns, span.end_ns);
  append_attributes(out, span.attributes);
  if (span.failed) {
    fmt::format_to(std::back_inserter(out), R"(,"status":{{"code":{},"message":)", kStatusError);
    json_append_string(out, span.error);
    out += '}';
  }
  out += '}';
}

}  // namespace

std::string otlp_json(const SpanAttributes& resource, const std::string& version, std::span<const Span> spans) {
  std::string out = R"({"resourceSpans":[{"resource":{)";
  append_attributes(out, resource);
  out += R"(},"scopeSpans":[{"scope":{"name":"millrace","version":)";
  json_append_string(out, version);
  out += R"(},"spans":[)";
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) out += ',';
    append_span(out, spans[i]);
  }
  out += "]}]}]}";
  return out;
}

}  // namespace millrace::http
