// The request line and header fields: where they end, and a strict reading of them (RFC 9112, without its leniencies).
//
// Two parsers that disagree about where a request ends are how requests are smuggled, so everything that the RFC lets a
// server tolerate is refused here: bare LF or CR, obs-fold, space before the colon, signs or lists in Content-Length,
// Content-Length beside Transfer-Encoding, any transfer coding but one "chunked".
//
// Thread safety: values and free functions; no sockets, so that a fuzzer can drive them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/limits.h"
#include "http/message.h"

namespace millrace::http {

// A refusal: the status for the client and a message with the value seen and the value wanted. 0: no error.
struct HttpError {
  int status = 0;
  std::string message;
  explicit operator bool() const { return status != 0; }
};

struct RequestHead {
  std::string method;
  std::vector<std::string> segments;  // decoded; empty for "OPTIONS *"
  std::string path;                   // the segments joined, or "*"
  std::string query;                  // raw
  int minor_version = 1;              // HTTP/1.0 or HTTP/1.1
  Headers headers;
  std::string host;  // without port and brackets, lower-cased; "" only for HTTP/1.0
  bool has_content_length = false;
  uint64_t content_length = 0;
  bool chunked = false;
  bool keep_alive = true;
  bool expect_continue = false;

  bool has_body() const { return chunked || content_length > 0; }
};

// Finds the end of a head in bytes that arrive in parts. Each byte is looked at once.
class HeadScanner {
 public:
  explicit HeadScanner(const Limits& limits) : limits_(limits) {}

  enum class State : uint8_t { kMore, kComplete, kError };
  // `data` is everything received since the start of the request; it grows from call to call. Refuses early what can be
  // no request: a bare CR or LF, a NUL, a first line that is no HTTP/1.x request line, sizes over the limits.
  State scan(std::string_view data);
  // Bytes of the head, its empty line included; valid after kComplete. Leading empty lines count.
  size_t head_bytes() const { return at_; }
  const HttpError& error() const { return error_; }

 private:
  State fail(int status, std::string message);
  State check_first_line(std::string_view data);

  const Limits& limits_;
  size_t at_ = 0;          // the next byte to look at
  size_t line_begin_ = 0;  // of the line that at_ is in
  size_t first_line_begin_ = 0;
  bool first_line_done_ = false;
  HttpError error_;
};

// Parses a complete head as delimited by HeadScanner. Returns the refusal, if any.
HttpError parse_head(std::string_view raw, const Limits& limits, RequestHead& head);

}  // namespace millrace::http
