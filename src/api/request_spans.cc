#include "api/request_spans.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "http/trace_context.h"

namespace millrace::api {
namespace {

constexpr double kNanoseconds = 1e9;

int64_t now_ns() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Everyone who draws by the trace's id draws the same; 52 bits are exact in a double.
bool is_drawn(const std::string& trace_id, double share) {
  const auto bits = static_cast<double>(std::stoull(trace_id.substr(19), nullptr, 16));
  return bits < share * static_cast<double>(uint64_t{1} << 52);
}

std::string_view operation_of(std::string_view path) {
  return path.find("chat") != path.npos || path.find("messages") != path.npos || path.find("responses") != path.npos
             ? "chat"
             : "text_completion";
}

http::Span part_of(const http::Span& request, const char* name, double from_seconds, double to_seconds) {
  return {.trace_id = request.trace_id,
          .span_id = http::new_span_id(),
          .parent_id = request.span_id,
          .name = name,
          .begin_ns = request.begin_ns + static_cast<int64_t>(from_seconds * kNanoseconds),
          .end_ns = request.begin_ns + static_cast<int64_t>(to_seconds * kNanoseconds)};
}

// The wait for KV pages of another server.
http::Span transfer_of(const http::Span& request, const wire::Usage& usage, double from_seconds, double to_seconds) {
  http::Span span = part_of(request, "kv_transfer", from_seconds, to_seconds);
  span.attributes = {{"millrace.kv_transfer.bytes", static_cast<int64_t>(usage.transfer->bytes)},
                     {"millrace.kv_transfer.tokens", int64_t{usage.transferred_tokens}},
                     {"millrace.kv_transfer.mode", usage.transfer->way.empty() ? "none" : usage.transfer->way}};
  return span;
}

}  // namespace

std::optional<http::Span> RequestSpans::begin(const http::RequestLabel& request, std::string_view model,
                                              double seconds) const {
  const std::optional<http::TraceContext> caller = http::parse_traceparent(request.traceparent);
  http::Span span{.trace_id = caller ? caller->trace_id : http::new_trace_id(), .kind = http::SpanKind::kServer};
  if (caller ? !caller->sampled : !is_drawn(span.trace_id, share_)) return std::nullopt;
  span.span_id = http::new_span_id();
  if (caller) span.parent_id = caller->span_id;
  span.name = request.method + " " + request.path;
  span.end_ns = now_ns();
  span.begin_ns = span.end_ns - static_cast<int64_t>(seconds * kNanoseconds);
  span.attributes = {{"http.request.method", request.method},
                     {"url.path", request.path},
                     {"gen_ai.operation.name", std::string(operation_of(request.path))},
                     {"gen_ai.request.model", std::string(model)},
                     {"millrace.request_id", request.request_id}};
  return span;
}

void RequestSpans::add(const http::RequestLabel& request, std::string_view model, const RequestFigures& figures,
                       std::string_view finish) {
  std::optional<http::Span> span = begin(request, model, figures.total_seconds);
  if (!span) return;
  const wire::Usage& usage = figures.usage;
  span->attributes.insert(span->attributes.end(), {{"gen_ai.usage.input_tokens", int64_t{usage.prompt_tokens}},
                                                   {"gen_ai.usage.output_tokens", int64_t{usage.completion_tokens}},
                                                   {"gen_ai.response.finish_reasons", std::vector{std::string(finish)}},
                                                   {"millrace.cached_tokens", int64_t{usage.cached_tokens}},
                                                   {"millrace.transferred_tokens", int64_t{usage.transferred_tokens}}});
  span->failed = finish.starts_with("error");
  if (span->failed) span->error = finish;
  const double first = figures.first_seconds, accepted = figures.accepted_seconds;
  const double admitted = accepted + figures.admitted_seconds;
  if (first > 0) {
    const double fetched = usage.transfer ? std::min(usage.transfer->seconds, accepted) : 0;
    exporter_->add(part_of(*span, "tokenize", 0, accepted - fetched));
    if (usage.transfer) exporter_->add(transfer_of(*span, usage, accepted - fetched, accepted));
    if (admitted > accepted) exporter_->add(part_of(*span, "queue", accepted, admitted));
    exporter_->add(part_of(*span, "prefill", admitted, first));
    exporter_->add(part_of(*span, "decode", first, figures.total_seconds));
  }
  exporter_->add(*std::move(span));
}

void RequestSpans::add_refusal(const http::RequestLabel& request, std::string_view model, const Status& why) {
  std::optional<http::Span> span = begin(request, model, 0);
  if (!span) return;
  span->attributes.emplace_back("error.type", std::string(status_code_name(why.code())));
  span->failed = true;
  span->error = why.message();
  exporter_->add(*std::move(span));
}

}  // namespace millrace::api
