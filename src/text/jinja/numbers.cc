#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/code_points.h"
#include "text/jinja/format.h"

namespace millrace::jinja {
namespace {

constexpr size_t kMaxNumberText = 4300;  // Python's own limit for the digits of an int

std::string_view strip_space(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end) {
    size_t at = begin;
    if (!is_space(next_code_point(text, at))) break;
    begin = at;
  }
  while (end > begin) {
    size_t at = previous_boundary(text, end);
    size_t position = at;
    if (!is_space(next_code_point(text, position))) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// Removes single underscores between digits; false when one stands elsewhere.
bool remove_underscores(std::string_view text, std::string& out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    if (i == 0 || i + 1 == text.size() || digit_of(text[i - 1]) > 35 || digit_of(text[i + 1]) > 35) return false;
  }
  return true;
}

// "0x", "0o", "0b" before the digits, where the base allows it; base 0 takes the base from it.
bool strip_base_prefix(std::string_view& text, int& base) {
  int named = 0;
  if (text.size() > 2 && text[0] == '0') {
    char letter = static_cast<char>(text[1] | 0x20);
    named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  }
  if (named != 0 && (base == 0 || base == named)) {
    base = named;
    text.remove_prefix(2);
    if (text[0] == '_') text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
    // "012" is no number in base 0, "00" is.
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) return false;
  }
  return !text.empty();
}

}  // namespace

std::string int_to_string(Int value) {
  if (value == 0) return "0";
  std::string digits;
  bool negative = value < 0;
  // Negative digits, for the smallest integer has no positive counterpart.
  for (; value != 0; value /= 10) {
    int digit = static_cast<int>(value % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  return negative ? "-" + digits : digits;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  // "-d.ddde[+-]xx": take it apart, then lay it out as Python does (repr style 'r': exponent below -4 or from 16 on).
  std::string out = text[0] == '-' ? "-" : "";
  if (text[0] == '-') text.remove_prefix(1);
  size_t e = text.find('e');
  bool negative_exponent = text[e + 1] == '-';
  int exponent = 0;  // to_chars writes no terminator: read the digits by hand
  for (char c : text.substr(e + 2)) exponent = exponent * 10 + (c - '0');
  if (negative_exponent) exponent = -exponent;
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  size_t integer_digits = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, integer_digits) + "." + digits.substr(integer_digits);
}

std::optional<Int> parse_int(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  text = strip_space(text);
  if (text.size() > kMaxNumberText) return std::nullopt;
  bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (!strip_base_prefix(text, base)) return std::nullopt;
  std::string digits;
  if (!remove_underscores(text, digits)) return std::nullopt;
  Int value = 0;
  for (char c : digits) {
    int digit = digit_of(c);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value) || __builtin_add_overflow(value, Int{digit}, &value)) {
      fail_limit("an integer of {} digits; the limit is 128 bits", digits.size());
    }
  }
  return negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_space(text);
  std::string plain;
  if (text.size() > kMaxNumberText || !remove_underscores(text, plain)) return std::nullopt;
  std::string_view body = plain;
  if (!body.empty() && (body[0] == '+' || body[0] == '-')) body.remove_prefix(1);
  // strtod also takes hexadecimal and "nan(...)", Python does not.
  bool word = !body.empty() && (body[0] == 'i' || body[0] == 'I' || body[0] == 'n' || body[0] == 'N');
  if (body.empty() || (!word && body.find_first_not_of("0123456789.eE+-") != std::string_view::npos)) {
    return std::nullopt;
  }
  if (body.find('(') != std::string_view::npos) return std::nullopt;
  char* end = nullptr;
  double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

Int float_to_int(double value) {
  if (std::isnan(value)) fail("cannot convert float NaN to integer");
  if (std::isinf(value)) fail("cannot convert float infinity to integer");
  if (std::fabs(value) >= 1.7e38) fail_limit("the number {} does not fit an integer of 128 bits", float_repr(value));
  return static_cast<Int>(value);
}

}  // namespace millrace::jinja
