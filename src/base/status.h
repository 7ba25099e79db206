// Status and Result<T>: how every fallible function in Millrace reports failure.
//
// No exception crosses a folder border: library exceptions are caught where the library is called and become a Status.
// A message has the value seen and the value wanted ("max_tokens is -1; wanted an integer >= 1"). CHECK is for
// programmer errors only, never for data that came from a file, a socket or a user.
//
// Thread safety: values; no shared state.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

// The numbers travel on the wire (wire/messages.h): append only, never renumber.
enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,    // the caller's data is malformed or out of range        HTTP 400
  kNotFound = 2,           // no such file, model, route, request                  HTTP 404
  kConflict = 3,           // the state does not allow this now                    HTTP 409
  kTooLarge = 4,           // over a named size limit                              HTTP 413 (api: 400)
  kResourceExhausted = 5,  // a queue or pool is full; try again later             HTTP 429
  kUnavailable = 6,        // loading, draining, or the part that serves is dead   HTTP 503
  kDeadline = 7,           // the time limit passed                                HTTP 504
  kCancelled = 8,          // the client went away or asked to stop                HTTP 499 (log only)
  kUnauthenticated = 9,    // missing or wrong credentials                         HTTP 401
  kPermissionDenied = 10,  // known caller, not allowed                            HTTP 403
  kUnsupported = 11,       // well-formed, but this build or model cannot do it    HTTP 400
  kInternal = 12,          // a bug or a broken invariant                          HTTP 500
};

std::string_view status_code_name(StatusCode code);

// One word: null is OK, and an error is allocated. Success, which nearly every call ends with, costs a comparison at
// each place that passes it on; what an error takes is compiled once, in status.cc, and not at each of those places.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) {
    if (code != StatusCode::kOk) error_ = new Error{code, std::move(message)};
  }
  Status(const Status& other) : error_(other.error_ ? copy(*other.error_) : nullptr) {}
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_) destroy(error_);
  }

  bool ok() const { return error_ == nullptr; }
  StatusCode code() const { return error_ ? error_->code : StatusCode::kOk; }
  // Empty where it is OK.
  const std::string& message() const;

  // "invalid_argument: max_tokens is -1; wanted ..." for logs.
  std::string to_string() const;

  // The same error with `prefix` + ": " before the message, to name the file or the field on the way up.
  Status with_prefix(std::string_view prefix) const;

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  static Error* copy(const Error& error);
  static void destroy(Error* error);

  Error* error_ = nullptr;
};

inline Status ok_status() { return Status(); }

Status format_error(StatusCode code, fmt::string_view format, fmt::format_args args);

template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return format_error(code, format, fmt::make_format_args(args...));
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return format_error(StatusCode::kInvalidArgument, format, fmt::make_format_args(args...));
}
template <typename... Args>
Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return format_error(StatusCode::kInternal, format, fmt::make_format_args(args...));
}

[[noreturn]] void check_failed(const char* file, int line, std::string_view what);

// A value or the Status of why there is none. Dereferencing an error is a programmer error and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) check_failed(__FILE__, __LINE__, "Result built from an OK status");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  T& value() & { return *checked(); }
  const T& value() const& { return *const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(*checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return checked(); }
  const T* operator->() const { return const_cast<Result*>(this)->checked(); }

 private:
  T* checked() {
    if (!value_) check_failed(__FILE__, __LINE__, status_.to_string());
    return &*value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace millrace

#define MILLRACE_CONCAT_INNER(a, b) a##b
#define MILLRACE_CONCAT(a, b) MILLRACE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                                                                       \
  do {                                                                                              \
    if (::millrace::Status returned_status = (expr); !returned_status.ok()) return returned_status; \
  } while (0)

#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(MILLRACE_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  if (!tmp.ok()) return tmp.status();         \
  lhs = std::move(tmp).value()

// For programmer errors only. Stays on in release builds.
#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) ::millrace::check_failed(__FILE__, __LINE__, #condition); \
  } while (0)
