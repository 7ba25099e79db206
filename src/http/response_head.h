// The bytes of a response head.
//
// Owner: the server's Context has the DateCache. Thread safety: DateCache belongs to one thread; the rest has no state.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "http/message.h"

namespace millrace::http {

// The Date header's value (RFC 9110 5.6.7), formatted once a second.
class DateCache {
 public:
  std::string_view get();

 private:
  std::time_t second_ = -1;
  std::string text_;
};

enum class Framing : uint8_t { kLength, kChunked, kUntilClose };

struct HeadContext {
  int minor_version = 1;  // of the request
  bool keep_alive = true;
  Framing framing = Framing::kLength;
  std::string_view server_name;
  std::string_view date;
  std::string_view request_id;
  std::string_view cors_origin;  // "": no CORS fields
};

// True when a response of that status has no body and no length (1xx, 204, 304).
bool is_bodyless(int status);

// Appends status line, fields and the empty line. The handler's fields cannot break the head: CR, LF and NUL become
// '?', and fields that this function writes itself (Content-Length, Transfer-Encoding, Connection, ...) are left out.
void append_response_head(std::string& out, const Response& response, const HeadContext& context);

// Writes "<hex size>\r\n" of a chunk into `out`.
void chunk_header(std::string& out, std::size_t size);

}  // namespace millrace::http
