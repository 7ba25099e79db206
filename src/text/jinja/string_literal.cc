#include "text/jinja/string_literal.h"

#include "text/jinja/code_points.h"
#include "text/jinja/error.h"

namespace millrace::jinja {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// `count` hexadecimal digits at `at`, which moves behind them.
uint32_t hex_escape(std::string_view body, size_t& at, size_t count, int line) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    int digit = at < body.size() ? hex_digit(body[at]) : -1;
    if (digit < 0) fail_at(line, "an escape of {} hexadecimal digits is cut off in a string", count);
    value = value << 4 | static_cast<uint32_t>(digit);
    ++at;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    fail_at(line, "the escape for U+{:04X} in a string names no character", value);
  }
  return value;
}

char simple_escape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return c;
    default:
      return 0;
  }
}

}  // namespace

std::string resolve_escapes(std::string_view body, int line) {
  std::string out;
  for (size_t at = 0; at < body.size();) {
    if (body[at] != '\\') {
      out += body[at++];
      continue;
    }
    char c = at + 1 < body.size() ? body[at + 1] : 0;
    at += 2;
    if (char simple = simple_escape(c); simple != 0) {
      out += simple;
    } else if (c == '\n') {
      // A continued line.
    } else if (c >= '0' && c <= '7') {
      uint32_t value = static_cast<uint32_t>(c - '0');
      for (int i = 0; i < 2 && at < body.size() && body[at] >= '0' && body[at] <= '7'; ++i) {
        value = value * 8 + static_cast<uint32_t>(body[at++] - '0');
      }
      append_utf8(out, value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_utf8(out, hex_escape(body, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, line));
    } else if (c == 'N') {
      fail_at(line, "\\N{{...}} escapes are not supported in strings");
    } else {
      out += '\\';
      --at;
    }
  }
  return out;
}

}  // namespace millrace::jinja
