#include "http/request_head.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/trimmed.h"
#include "http/target.h"

namespace millrace::http {
namespace {

constexpr size_t kMaxMethodBytes = 32;
constexpr size_t kVersionBytes = 8;          // "HTTP/1.1"
constexpr size_t kMaxLeadingEmptyLines = 1;  // RFC 9112 2.2: some clients end a body with an extra CRLF
constexpr size_t kMaxLengthDigits = 18;      // fits in 63 bits

HttpError bad(std::string message) { return {400, std::move(message)}; }

struct RequestLine {
  std::string_view method, target;
  int minor = 1;
};

HttpError parse_request_line(std::string_view line, const Limits& limits, RequestLine& out) {
  size_t first = line.find(' ');
  size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return bad("malformed request line; wanted METHOD SP target SP HTTP/1.1");
  }
  out.method = line.substr(0, first);
  out.target = line.substr(first + 1, last - first - 1);
  std::string_view version = line.substr(last + 1);
  if (!is_token(out.method) || out.method.size() > kMaxMethodBytes) return bad("malformed method");
  if (version.size() != kVersionBytes || !version.starts_with("HTTP/") || version[6] != '.' || version[5] < '0' ||
      version[5] > '9' || version[7] < '0' || version[7] > '9') {
    return bad("malformed protocol version; wanted HTTP/1.1 or HTTP/1.0");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return {505, fmt::format("protocol version is {}; wanted HTTP/1.1 or HTTP/1.0", version)};
  }
  out.minor = version[7] - '0';
  if (out.target.size() > limits.target_bytes) {
    return {414, fmt::format("request target is {} bytes; the limit is {}", out.target.size(), limits.target_bytes)};
  }
  return {};
}

// RFC 9112 3.2.2: a server accepts "http://host/path" too, and then this host counts in place of the Host field's.
HttpError take_authority(std::string& target, RequestHead& head) {
  const std::size_t scheme = target.find("://");
  if (scheme == std::string::npos) return {};
  const std::string_view name = std::string_view(target).substr(0, scheme);
  if (!equals_ignore_case(name, "http") && !equals_ignore_case(name, "https")) return {};
  const std::size_t begin = scheme + 3;
  const std::size_t end = std::min(target.find_first_of("/?", begin), target.size());
  if (!parse_host(std::string_view(target).substr(begin, end - begin), head.host)) {
    return bad("malformed host in the request target; wanted a name or address and an optional port");
  }
  target.erase(0, end);
  if (!target.starts_with('/')) target.insert(0, 1, '/');
  return {};
}

HttpError parse_target(std::string target, RequestHead& head) {
  if (target == "*" && head.method == "OPTIONS") {
    head.path.push_back('*');
    return {};
  }
  if (HttpError error = take_authority(target, head)) return error;
  std::string_view problem = split_target(target, head.segments, head.query);
  if (!problem.empty()) return bad(std::string(problem));
  for (const std::string& segment : head.segments) {
    head.path += '/';
    head.path += segment;
  }
  return {};
}

HttpError parse_field(std::string_view line, RequestHead& head) {
  if (line.front() == ' ' || line.front() == '\t') return bad("a header field is folded over several lines");
  size_t colon = line.find(':');
  if (colon == std::string_view::npos) return bad("a header line has no ':'");
  std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return bad("a header name has a space or another character that no token has");
  std::string_view value = trimmed(line.substr(colon + 1), kBlanks);
  for (char c : value) {
    uint8_t byte = static_cast<uint8_t>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7F) return bad("a header value has a control character");
  }
  head.headers.add(std::string(name), std::string(value));
  return {};
}

// Calls `visit` for each member of a comma-separated list in every field of that name.
template <typename Visit>
void for_each_token(const Headers& headers, std::string_view name, Visit visit) {
  for (const Header& field : headers) {
    if (!equals_ignore_case(field.name, name)) continue;
    std::string_view rest = field.value;
    while (true) {
      size_t comma = rest.find(',');
      visit(trimmed(rest.substr(0, comma), kBlanks));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
}

HttpError read_framing(RequestHead& head) {
  if (const std::string* length = head.headers.find("content-length")) {
    bool digits = !length->empty() && length->size() <= kMaxLengthDigits;
    for (char c : *length) digits = digits && c >= '0' && c <= '9';
    if (!digits) return bad("malformed Content-Length; wanted one decimal number");
    head.has_content_length = true;
    for (char c : *length) head.content_length = head.content_length * 10 + static_cast<uint64_t>(c - '0');
  }
  if (const std::string* coding = head.headers.find("transfer-encoding")) {
    if (head.has_content_length) return bad("both Content-Length and Transfer-Encoding; wanted one of them");
    if (head.minor_version == 0) return bad("Transfer-Encoding in an HTTP/1.0 request");
    if (!equals_ignore_case(*coding, "chunked")) return bad("Transfer-Encoding is not 'chunked'");
    head.chunked = true;
  }
  return {};
}

HttpError read_connection_fields(RequestHead& head) {
  head.keep_alive = head.minor_version == 1;
  bool close = false;
  bool keep = false;
  for_each_token(head.headers, "connection", [&](std::string_view token) {
    close = close || equals_ignore_case(token, "close");
    keep = keep || equals_ignore_case(token, "keep-alive");
  });
  if (keep) head.keep_alive = true;
  if (close) head.keep_alive = false;
  if (const std::string* expect = head.headers.find("expect")) {
    if (!equals_ignore_case(*expect, "100-continue")) return {417, "Expect is not '100-continue'"};
    // RFC 9110 10.1.1: an HTTP/1.0 client cannot read an interim response.
    head.expect_continue = head.minor_version == 1;
  }
  return {};
}

HttpError check_fields(RequestHead& head) {
  static constexpr std::string_view kSingle[] = {"host",          "content-length", "transfer-encoding",
                                                 "authorization", "content-type",   "expect"};
  for (std::string_view name : kSingle) {
    int count = head.headers.count(name);
    if (count > 1) return bad(fmt::format("{} {} header fields; wanted at most 1", count, name));
  }
  const std::string* host = head.headers.find("host");
  if (host == nullptr) {
    if (head.minor_version == 1) return bad("no Host header field");
  } else if (std::string name; !parse_host(*host, name)) {
    return bad("malformed Host; wanted a name or address and an optional port");
  } else if (head.host.empty()) {  // the target has none
    head.host = std::move(name);
  }
  if (HttpError error = read_framing(head)) return error;
  return read_connection_fields(head);
}

}  // namespace

HeadScanner::State HeadScanner::fail(int status, std::string message) {
  error_ = {status, std::move(message)};
  return State::kError;
}

HeadScanner::State HeadScanner::check_first_line(std::string_view data) {
  if (line_begin_ + 2 == at_) {  // an empty line before the request
    if (line_begin_ / 2 >= kMaxLeadingEmptyLines) return fail(400, "empty lines instead of a request line");
    first_line_begin_ = at_;
    return State::kMore;
  }
  first_line_done_ = true;
  RequestLine line;
  if (HttpError error = parse_request_line(data.substr(line_begin_, at_ - 2 - line_begin_), limits_, line)) {
    return fail(error.status, std::move(error.message));
  }
  return State::kMore;
}

HeadScanner::State HeadScanner::scan(std::string_view data) {
  while (at_ < data.size()) {
    if (at_ >= limits_.head_bytes) {
      if (first_line_done_)
        return fail(431, fmt::format("request head is over the limit of {} bytes", limits_.head_bytes));
      return fail(414, fmt::format("request line is over the limit of {} bytes", limits_.head_bytes));
    }
    char c = data[at_];
    bool after_cr = at_ > line_begin_ && data[at_ - 1] == '\r';
    ++at_;
    if (c != '\n') {
      if (after_cr) return fail(400, "a carriage return without a line feed");
      if (c == '\0') return fail(400, "a NUL byte in the request head");
      // TLS and other binary protocols on this port show in their first byte.
      if (at_ == first_line_begin_ + 1 && c != '\r' && !is_token_char(c)) return fail(400, "this is no HTTP request");
      constexpr size_t kRest = kMaxMethodBytes + kVersionBytes + 2;
      if (!first_line_done_ && at_ - line_begin_ > limits_.target_bytes + kRest) {
        return fail(414, fmt::format("request target is over the limit of {} bytes", limits_.target_bytes));
      }
      continue;
    }
    if (!after_cr) return fail(400, "a line feed without a carriage return");
    bool empty_line = line_begin_ + 2 == at_;
    if (!first_line_done_) {
      if (check_first_line(data) == State::kError) return State::kError;
    } else if (empty_line) {
      return State::kComplete;
    }
    line_begin_ = at_;
  }
  return State::kMore;
}

HttpError parse_head(std::string_view raw, const Limits& limits, RequestHead& head) {
  while (raw.starts_with("\r\n")) raw.remove_prefix(2);
  size_t end = raw.find("\r\n");
  if (end == std::string_view::npos) return bad("no request line");
  RequestLine line;
  if (HttpError error = parse_request_line(raw.substr(0, end), limits, line)) return error;
  head.method = std::string(line.method);
  head.minor_version = line.minor;
  raw.remove_prefix(end + 2);
  while (true) {
    end = raw.find("\r\n");
    if (end == std::string_view::npos) return bad("the head does not end with an empty line");
    if (end == 0) break;
    if (head.headers.size() >= limits.header_count) {
      return {431, fmt::format("more than {} header fields", limits.header_count)};
    }
    if (HttpError error = parse_field(raw.substr(0, end), head)) return error;
    raw.remove_prefix(end + 2);
  }
  if (HttpError error = parse_target(std::string(line.target), head)) return error;
  return check_fields(head);
}

}  // namespace millrace::http
