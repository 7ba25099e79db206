#include "wire/probe_messages.h"

#include "wire/checks.h"

namespace millrace::wire {

Status validate(const RequestProbe& message) { return check_origin(message.from, true); }

Status validate(const RequestShare& share) {
  RETURN_IF_ERROR(check_names("source", share.sources));
  return check_names("target", share.targets);
}

Status validate(const RequestReport& message) {
  RETURN_IF_ERROR(check_origin(message.from, false));
  for (const RequestShare& share : message.requests) RETURN_IF_ERROR(validate(share));
  return ok_status();
}

}  // namespace millrace::wire
