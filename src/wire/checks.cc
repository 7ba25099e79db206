#include "wire/checks.h"

#include <algorithm>

#include "base/trace_context.h"
#include "base/utf8.h"

namespace millrace::wire {

Status check_name(std::string_view field, const std::string& name) {
  if (is_stage_name(name)) return ok_status();
  return invalid_argument("{} is \"{}\"; wanted 1 to {} letters, digits, '-' or '_'", field,
                          utf8_repair(name.substr(0, kMaxStageNameBytes)), kMaxStageNameBytes);
}

Status check_text(const char* field, const std::string& text) {
  const std::size_t fault = utf8_find_invalid(text);
  if (fault == std::string_view::npos) return ok_status();
  return invalid_argument("{}: byte {:#04x} at offset {}; wanted UTF-8", field, static_cast<uint8_t>(text[fault]),
                          fault);
}

Status check_not_negative(const char* field, int64_t value) {
  if (value >= 0) return ok_status();
  return invalid_argument("{} is {}; wanted at least 0", field, value);
}

Status check_origin(const Origin& from, bool coordinator) {
  if (coordinator && from.stage.empty()) return ok_status();
  return check_name("from.stage", from.stage);
}

// A receiver acts on the presence of a failure, and its code goes to a client as an HTTP status: an error with "ok" in
// it would be both.
Status check_failure(const char* field, const std::optional<Failure>& failure) {
  if (!failure || failure->code != StatusCode::kOk) return ok_status();
  return invalid_argument("{} has the code 0 (ok); wanted an error's", field);
}

Status check_names(const char* what, const std::vector<std::string>& names) {
  // Each with each: at most kMaxTerminals or kMaxSources of them.
  for (std::size_t i = 0; i < names.size(); ++i) {
    RETURN_IF_ERROR(check_name(fmt::format("a {}", what), names[i]));
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(names.begin(), end, names[i]) != end) {
      return invalid_argument("{} \"{}\" is named twice; wanted once", what, names[i]);
    }
  }
  return ok_status();
}

Status check_traceparent(const std::string& text) {
  if (text.empty()) return ok_status();
  const auto context = parse_traceparent(text);
  // In the one form that make_traceparent() writes: what a stage sends on is what it got.
  if (context && context->sampled && text == make_traceparent(context->trace_id, context->span_id)) return ok_status();
  return invalid_argument("traceparent is \"{}\"; wanted 00-TRACE-SPAN-01 of hexadecimal ids, or nothing",
                          utf8_repair(text));
}

Status check_route(const std::vector<RouteHop>& route) {
  for (const RouteHop& hop : route) RETURN_IF_ERROR(check_name("a stage of the route", hop.stage));
  return ok_status();
}

}  // namespace millrace::wire
