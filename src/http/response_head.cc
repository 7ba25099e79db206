#include "http/response_head.h"

#include <fmt/core.h>

#include <charconv>

#include "http/target.h"

namespace millrace::http {
namespace {

bool is_reserved_field(std::string_view name) {
  static constexpr std::string_view kReserved[] = {
      "content-length", "transfer-encoding", "connection", "content-type", "date", "server", "x-request-id"};
  for (std::string_view reserved : kReserved) {
    if (equals_ignore_case(reserved, name)) return true;
  }
  return false;
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (char c : value) out += (c == '\r' || c == '\n' || c == '\0') ? '?' : c;
  out += "\r\n";
}

}  // namespace

std::string_view DateCache::get() {
  std::time_t now = std::time(nullptr);
  if (now == second_) return text_;
  second_ = now;
  // Not strftime: its names follow the locale.
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&now, &utc);
  text_ = fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                      utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return text_;
}

bool is_bodyless(int status) { return status < 200 || status == 204 || status == 304; }

void append_response_head(std::string& out, const Response& response, const HeadContext& context) {
  out += fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  append_field(out, "Server", context.server_name);
  append_field(out, "Date", context.date);
  if (!context.request_id.empty()) append_field(out, "x-request-id", context.request_id);
  if (!response.content_type.empty()) append_field(out, "Content-Type", response.content_type);
  for (const Header& field : response.headers) {
    if (is_token(field.name) && !is_reserved_field(field.name)) append_field(out, field.name, field.value);
  }
  if (!context.cors_origin.empty()) {
    append_field(out, "Access-Control-Allow-Origin", context.cors_origin);
    append_field(out, "Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
    if (context.cors_origin != "*") append_field(out, "Vary", "Origin");
  }
  if (context.framing == Framing::kChunked) {
    append_field(out, "Transfer-Encoding", "chunked");
  } else if (context.framing == Framing::kLength && !is_bodyless(response.status)) {
    append_field(out, "Content-Length", std::to_string(response.body.size()));
  }
  if (!context.keep_alive) {
    append_field(out, "Connection", "close");
  } else if (context.minor_version == 0) {
    append_field(out, "Connection", "keep-alive");
  }
  out += "\r\n";
}

void chunk_header(std::string& out, std::size_t size) {
  char digits[2 * sizeof size];
  char* end = std::to_chars(digits, digits + sizeof digits, size, 16).ptr;
  out.assign(digits, static_cast<std::size_t>(end - digits));
  out += "\r\n";
}

}  // namespace millrace::http
