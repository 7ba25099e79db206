#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace millrace {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kConflict:
      return "conflict";
    case StatusCode::kTooLarge:
      return "too_large";
    case StatusCode::kResourceExhausted:
      return "resource_exhausted";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadline:
      return "deadline";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnauthenticated:
      return "unauthenticated";
    case StatusCode::kPermissionDenied:
      return "permission_denied";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

const std::string& Status::message() const {
  static const std::string none;
  return error_ ? error_->message : none;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return fmt::format("{}: {}", status_code_name(code()), message());
}

Status Status::with_prefix(std::string_view prefix) const {
  if (ok()) return ok_status();
  return Status(code(), fmt::format("{}: {}", prefix, message()));
}

Status::Error* Status::copy(const Error& error) { return new Error(error); }

void Status::destroy(Error* error) { delete error; }

Status format_error(StatusCode code, fmt::string_view format, fmt::format_args args) {
  return Status(code, fmt::vformat(format, args));
}

void check_failed(const char* file, int line, std::string_view what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %.*s\n", file, line, static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace millrace
