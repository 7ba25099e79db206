#include "wire/probe_messages.h"

#include "wire/checks.h"

namespace millrace::wire {

Status validate(const RequestProbe& message) { return check_origin(message.from, true); }

Status validate(const StageRequest& request) {
  RETURN_IF_ERROR(check_names("source", request.sources));
  return check_names("target", request.targets);
}

Status validate(const RequestReport& message) {
  RETURN_IF_ERROR(check_origin(message.from, false));
  for (const StageRequest& request : message.requests) RETURN_IF_ERROR(validate(request));
  return ok_status();
}

}  // namespace millrace::wire
