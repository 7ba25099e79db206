#include "text/json_cursor.h"

#include "base/utf8.h"

namespace millrace {

void JsonCursor::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

// at_ is the byte that does not fit: the callers leave it there, or set it back, before they call this.
Status JsonCursor::fail(std::string_view wanted) const {
  if (at_ >= text_.size()) return invalid_argument("JSON ends at byte {}; wanted {}", offset(), wanted);
  const auto byte = static_cast<unsigned char>(text_[at_]);
  if (byte >= 0x20 && byte < 0x7F) return invalid_argument("byte {} is '{}'; wanted {}", offset(), text_[at_], wanted);
  return invalid_argument("byte {} is 0x{:02x}; wanted {}", offset(), byte, wanted);
}

char JsonCursor::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

Status JsonCursor::enter(char bracket) {
  CHECK(bracket == '{' || bracket == '[');
  if (peek() != bracket) return fail(bracket == '{' ? "an object" : "an array");
  ++at_;
  first_ = true;
  return ok_status();
}

// Behind a bracket comes an element or the closing bracket; later a comma or the closing bracket. A comma before the
// closing bracket is refused by the read that follows: it gets the bracket instead of a value. One flag serves all
// depths: when a nested array or object is left, the one around it has had an element, and the flag is false as it must
// be.
Result<bool> JsonCursor::next(char closing) {
  const char c = peek();
  if (c == closing) {
    ++at_;
    first_ = false;
    return false;
  }
  if (first_) {
    first_ = false;
    return true;
  }
  if (c != ',') return fail("',' or the closing bracket");
  ++at_;
  return true;
}

Result<bool> JsonCursor::next_element() { return next(']'); }

Result<bool> JsonCursor::next_member(std::string& key) {
  ASSIGN_OR_RETURN(const bool more, next('}'));
  if (!more) return false;
  RETURN_IF_ERROR(read_string(key));
  if (peek() != ':') return fail("':'");
  ++at_;
  return true;
}

// Not from_chars: it would take fewer than four digits.
Result<uint32_t> JsonCursor::read_hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      return fail("a hexadecimal digit");
    }
    value = value << 4 | digit;
  }
  return value;
}

Status JsonCursor::read_escape(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  static constexpr std::string_view kNames = "\"\\/bfnrt";
  static constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
  if (const size_t i = kNames.find(c); c != '\0' && i != std::string_view::npos) {
    ++at_;
    out += kBytes[i];
    return ok_status();
  }
  if (c != 'u') return fail("an escape");
  ++at_;
  ASSIGN_OR_RETURN(uint32_t value, read_hex4());
  // RFC 8259, section 7: a character beyond the Basic Multilingual Plane is written as two surrogates. Half of a pair
  // has no UTF-8, and a vocabulary with it could not be encoded to, so it is refused.
  if (value >= 0xD800 && value <= 0xDBFF) {
    if (text_.substr(at_, 2) != "\\u") return fail("the second half of a surrogate pair");
    at_ += 2;
    ASSIGN_OR_RETURN(const uint32_t low, read_hex4());
    if (low < 0xDC00 || low > 0xDFFF) return fail("a low surrogate before it");
    value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
  } else if (value >= 0xDC00 && value <= 0xDFFF) {
    return fail("no lone surrogate before it");
  }
  utf8_append(out, value);
  return ok_status();
}

Status JsonCursor::read_string(std::string& out) {
  if (peek() != '"') return fail("a string");
  ++at_;
  out.clear();
  while (true) {
    // Runs without an escape are copied at once; few strings of a vocabulary have any.
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
    out.append(text_, start, at_ - start);
    if (at_ >= text_.size()) return fail("the end of a string");
    const char c = text_[at_];
    // RFC 8259: control characters stand in strings as escapes only. parse_json() refuses them too.
    if (static_cast<unsigned char>(c) < 0x20) return fail("no control character in a string");
    ++at_;
    if (c == '"') return ok_status();
    RETURN_IF_ERROR(read_escape(out));
  }
}

Status JsonCursor::read_integer(int64_t& out) {
  peek();
  const size_t start = at_;
  const bool negative = at_ < text_.size() && text_[at_] == '-';
  if (negative) ++at_;
  const size_t digits = at_;
  int64_t value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    // The smallest 64-bit integer, whose magnitude has no positive counterpart, is refused as well; ids never come near
    // it.
    if (__builtin_mul_overflow(value, int64_t{10}, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value)) {
      return fail("an integer of at most 63 bits");
    }
    ++at_;
  }
  // RFC 8259 has no leading zeros. at_ is set back so that the error names the first byte of the number.
  const bool leading_zero = at_ - digits > 1 && text_[digits] == '0';
  if (at_ == digits || leading_zero) {
    at_ = start;
    return fail("an integer");
  }
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) return fail("an integer");
  out = negative ? -value : value;
  return ok_status();
}

Status JsonCursor::skip_string() {
  ++at_;
  // Whatever the byte behind a backslash is, it does not end the string; that the escape is a good one, the parser of
  // the slice checks. A backslash as the last byte carries at_ one beyond the end.
  while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
  if (at_ >= text_.size()) {
    at_ = text_.size();
    return fail("the end of a string");
  }
  ++at_;
  return ok_status();
}

// Counts brackets instead of recursing, so the depth of the file costs no stack. The kinds of brackets are not compared
// here; the parser of the slice does that.
Result<std::string_view> JsonCursor::skip_value() {
  peek();
  const size_t start = at_;
  size_t depth = 0;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '"') {
      RETURN_IF_ERROR(skip_string());
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at_;
      continue;
    } else if (c == '}' || c == ']') {
      // The bracket of what is around the value: next() reads it.
      if (depth == 0) break;
      --depth;
      ++at_;
    } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
      break;
    } else {
      ++at_;
      continue;
    }
    if (depth == 0) break;
  }
  if (depth > 0) return fail("the closing bracket");
  if (at_ == start) return fail("a value");
  return text_.substr(start, at_ - start);
}

Status JsonCursor::expect_end() {
  // peek() gives '\0' for a NUL byte of the file too.
  if (peek() != '\0' || at_ < text_.size()) return fail("the end of the file");
  return ok_status();
}

}  // namespace millrace
