// What validate() of several messages asks of a field: names, text, origins. kInvalidArgument names the field, the
// value seen and the one wanted. Included by the .cc files of wire/ alone.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "wire/pipeline_messages.h"

namespace millrace::wire {

Status check_name(std::string_view field, const std::string& name);
Status check_text(const char* field, const std::string& text);
Status check_not_negative(const char* field, int64_t value);
// With `coordinator` also the coordinator's, which has no stage.
Status check_origin(const Origin& from, bool coordinator);
Status check_failure(const char* field, const std::optional<Failure>& failure);
// Of stages, each once; `what` one of them is.
Status check_names(const char* what, const std::vector<std::string>& names);
// Empty, or of a request that is recorded, as make_traceparent() writes it.
Status check_traceparent(const std::string& text);
Status check_route(const std::vector<RouteHop>& route);

}  // namespace millrace::wire
