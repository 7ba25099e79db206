#include "http/message.h"

#include "http/target.h"

namespace millrace::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool equals_ignore_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

void Headers::set(std::string_view name, std::string value) {
  for (Header& field : fields_) {
    if (equals_ignore_case(field.name, name)) {
      field.value = std::move(value);
      return;
    }
  }
  fields_.push_back({std::string(name), std::move(value)});
}

const std::string* Headers::find(std::string_view name) const {
  for (const Header& field : fields_) {
    if (equals_ignore_case(field.name, name)) return &field.value;
  }
  return nullptr;
}

int Headers::count(std::string_view name) const {
  int count = 0;
  for (const Header& field : fields_) count += equals_ignore_case(field.name, name) ? 1 : 0;
  return count;
}

std::string_view Request::param(std::string_view name) const {
  for (const auto& [key, value] : params) {
    if (key == name) return value;
  }
  return "";
}

bool Request::query_value(std::string_view name, std::string& out) const {
  std::string_view rest = query;
  std::string key;
  while (!rest.empty()) {
    size_t end = rest.find('&');
    std::string_view field = rest.substr(0, end);
    size_t equals = field.find('=');
    if (percent_decode(field.substr(0, equals), true, key) && key == name) {
      std::string_view value = equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
      return percent_decode(value, true, out);
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return false;
}

// RFC 9110, section 15, and RFC 6585.
std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 426:
      return "Upgrade Required";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

void append_sse_data(std::string& out, std::string_view data) {
  while (true) {
    size_t end = data.find_first_of("\r\n");
    out += "data: ";
    out += data.substr(0, end);
    out += '\n';
    if (end == std::string_view::npos) break;
    bool crlf = data[end] == '\r' && end + 1 < data.size() && data[end + 1] == '\n';
    data.remove_prefix(end + (crlf ? 2 : 1));
  }
  out += '\n';
}

}  // namespace millrace::http
