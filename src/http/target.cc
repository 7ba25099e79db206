#include "http/target.h"

#include <cstdint>

#include "base/utf8.h"

namespace millrace::http {
namespace {

bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_dot_segment(std::string_view part) { return part == "." || part == ".."; }

// A decoded segment may hold '/' from %2F; each part must still not be a dot segment. Backslashes separate on some
// systems.
bool has_dot_part(std::string_view segment) {
  size_t begin = 0;
  while (true) {
    size_t end = segment.find_first_of("/\\", begin);
    if (is_dot_segment(segment.substr(begin, end == std::string_view::npos ? end : end - begin))) return true;
    if (end == std::string_view::npos) return false;
    begin = end + 1;
  }
}

}  // namespace

bool is_token_char(char c) {
  if (is_alnum(c)) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (!is_token_char(c)) return false;
  }
  return true;
}

bool percent_decode(std::string_view text, bool plus_is_space, std::string& out) {
  out.clear();
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (text.size() - i < 3) return false;
      int high = hex_value(text[i + 1]);
      int low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      if (c == '\0') return false;
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    out.push_back(c);
  }
  return true;
}

std::string_view split_target(std::string_view target, std::vector<std::string>& segments, std::string& query) {
  segments.clear();
  query.clear();
  if (target.empty() || target[0] != '/') return "the request target does not start with '/'";
  for (char c : target) {
    uint8_t byte = static_cast<uint8_t>(c);
    if (byte <= 0x20 || byte >= 0x7F || c == '#') return "the request target has a byte outside visible ASCII, or '#'";
  }
  size_t mark = target.find('?');
  std::string_view path = target.substr(0, mark);
  std::string decoded;
  if (mark != std::string_view::npos) {
    query = std::string(target.substr(mark + 1));
    if (!percent_decode(query, false, decoded)) return "the query has a malformed percent escape or %00";
  }
  for (size_t begin = 1;;) {
    size_t end = path.find('/', begin);
    std::string_view raw = path.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (!percent_decode(raw, false, decoded)) return "the path has a malformed percent escape or %00";
    if (utf8_find_invalid(decoded) != std::string_view::npos) return "the path is not UTF-8";
    if (has_dot_part(decoded)) return "the path has a '.' or '..' segment";
    segments.push_back(decoded);
    if (end == std::string_view::npos) return "";
    begin = end + 1;
  }
}

bool parse_host(std::string_view host, std::string& name) {
  name.clear();
  std::string_view port;
  bool has_port = false;
  if (!host.empty() && host[0] == '[') {
    size_t close = host.find(']');
    if (close == std::string_view::npos || close < 3) return false;
    for (char c : host.substr(1, close - 1)) {
      if (hex_value(c) < 0 && c != ':' && c != '.') return false;
    }
    name = host.substr(1, close - 1);
    if (close + 1 < host.size()) {
      if (host[close + 1] != ':') return false;
      has_port = true;
      port = host.substr(close + 2);
    }
  } else {
    size_t colon = host.find(':');
    name = host.substr(0, colon);
    if (name.empty()) return false;
    for (char c : name) {
      if (!is_alnum(c) && c != '.' && c != '-' && c != '_') return false;
    }
    if (colon != std::string_view::npos) {
      has_port = true;
      port = host.substr(colon + 1);
    }
  }
  if (has_port) {
    if (port.empty() || port.size() > 5) return false;
    for (char c : port) {
      if (c < '0' || c > '9') return false;
    }
  }
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return true;
}

bool is_loopback_name(std::string_view name) {
  if (name == "localhost" || name == "::1" || name.ends_with(".localhost")) return true;
  // 127.x.y.z and nothing else: "127.0.0.1.evil.example" is a name, not an address.
  if (!name.starts_with("127.")) return false;
  int dots = 0;
  for (char c : name) {
    if (c == '.') {
      ++dots;
    } else if (c < '0' || c > '9') {
      return false;
    }
  }
  return dots == 3 && name.find("..") == std::string_view::npos && name.back() != '.';
}

}  // namespace millrace::http
