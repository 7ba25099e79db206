#include "api/request_spans.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace millrace::api {
namespace {

constexpr double kNanoseconds = 1e9;

// Everyone who draws by the trace's id draws the same; 52 bits are exact in a double.
bool is_drawn(const std::string& trace_id, double share) {
  CHECK(trace_id.size() == 32);
  const auto bits = static_cast<double>(std::stoull(trace_id.substr(19), nullptr, 16));
  return bits < share * static_cast<double>(uint64_t{1} << 52);
}

std::string_view operation_of(std::string_view path) {
  return path.find("chat") != path.npos || path.find("messages") != path.npos || path.find("responses") != path.npos
             ? "chat"
             : "text_completion";
}

Span part_of(const Span& request, const char* name, double from_seconds, double to_seconds) {
  // The figures are of another clock than the span's ends.
  const auto at = [&request](double seconds) {
    return std::min(request.begin_ns + static_cast<int64_t>(seconds * kNanoseconds), request.end_ns);
  };
  return {.trace_id = request.trace_id,
          .span_id = new_span_id(),
          .parent_id = request.span_id,
          .name = name,
          .begin_ns = at(from_seconds),
          .end_ns = at(to_seconds)};
}

// The wait for KV pages of another server.
Span transfer_of(const Span& request, const wire::Usage& usage, double from_seconds, double to_seconds) {
  CHECK(usage.transfer);
  Span span = part_of(request, "kv_transfer", from_seconds, to_seconds);
  span.attributes = {{"millrace.kv_transfer.bytes", static_cast<int64_t>(usage.transfer->bytes)},
                     {"millrace.kv_transfer.tokens", int64_t{usage.transferred_tokens}},
                     {"millrace.kv_transfer.mode", usage.transfer->way.empty() ? "none" : usage.transfer->way}};
  return span;
}

void add_model(Span& span, const std::string& path, std::string_view model) {
  span.attributes.emplace_back("gen_ai.operation.name", std::string(operation_of(path)));
  span.attributes.emplace_back("gen_ai.request.model", std::string(model));
}

}  // namespace

std::optional<ServerSpan> RequestSpans::begin(const http::RequestLabel& request, double seconds_ago) const {
  const std::optional<TraceContext> caller = parse_traceparent(request.traceparent);
  Span span{.trace_id = caller ? caller->trace_id : new_trace_id(), .kind = SpanKind::kServer};
  if (caller ? !caller->sampled : !is_drawn(span.trace_id, share_)) return std::nullopt;
  span.span_id = new_span_id();
  if (caller) span.parent_id = caller->span_id;
  span.name = request.method + " " + request.path;
  span.begin_ns = exporter_->now_ns() - static_cast<int64_t>(seconds_ago * kNanoseconds);
  span.attributes = {
      {"http.request.method", request.method}, {"url.path", request.path}, {"millrace.request_id", request.request_id}};
  return ServerSpan{std::move(span), request.path};
}

void RequestSpans::end(ServerSpan server, std::string_view model, const RequestFigures& figures,
                       std::string_view finish) {
  Span& span = server.span;
  span.end_ns = exporter_->now_ns();
  const wire::Usage& usage = figures.usage;
  add_model(span, server.path, model);
  span.attributes.insert(span.attributes.end(), {{"gen_ai.usage.input_tokens", int64_t{usage.prompt_tokens}},
                                                 {"gen_ai.usage.output_tokens", int64_t{usage.completion_tokens}},
                                                 {"gen_ai.response.finish_reasons", std::vector{std::string(finish)}},
                                                 {"millrace.cached_tokens", int64_t{usage.cached_tokens}},
                                                 {"millrace.transferred_tokens", int64_t{usage.transferred_tokens}}});
  span.failed = finish.starts_with("error");
  if (span.failed) span.error = finish;
  const double first = figures.first_seconds, accepted = figures.accepted_seconds;
  const double admitted = accepted + figures.admitted_seconds;
  if (first > 0) {
    const double fetched = usage.transfer ? std::min(usage.transfer->seconds, accepted) : 0;
    exporter_->add(part_of(span, "tokenize", 0, accepted - fetched));
    if (usage.transfer) exporter_->add(transfer_of(span, usage, accepted - fetched, accepted));
    if (admitted > accepted) exporter_->add(part_of(span, "queue", accepted, admitted));
    exporter_->add(part_of(span, "prefill", admitted, first));
    exporter_->add(part_of(span, "decode", first, figures.total_seconds));
  }
  exporter_->add(std::move(span));
}

void RequestSpans::end(ServerSpan server, std::string_view model, const Status& status) {
  Span& span = server.span;
  span.end_ns = exporter_->now_ns();
  if (!model.empty()) add_model(span, server.path, model);
  if (!status.ok()) {
    span.attributes.emplace_back("error.type", std::string(status_code_name(status.code())));
    span.failed = true;
    span.error = status.message();
  }
  exporter_->add(std::move(span));
}

}  // namespace millrace::api
