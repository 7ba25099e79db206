#include "text/jinja/percent_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "text/jinja/code_points.h"
#include "text/jinja/format.h"
#include "text/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

constexpr int64_t kMaxPrecision = 500;  // of a number; a width is bounded by the string limit

// Follows PyUnicode_Format() of CPython.
class PercentFormat {
 public:
  PercentFormat(const MarkedString& pattern, const Value& values, Budget& budget)
      : pattern_(pattern), text_(pattern.text()), values_(values), budget_(budget) {}

  MarkedString run() {
    while (at_ < text_.size()) {
      size_t percent = text_.find('%', at_);
      // The text between keeps the pattern's marks.
      if (percent == std::string::npos) percent = text_.size();
      out_.append_range(pattern_, at_, percent);
      at_ = percent;
      if (at_ < text_.size()) conversion();
      budget_.steps();
      // Each conversion charges its own string; this bounds their sum.
      if (out_.size() > budget_.limits().max_string_bytes) fail_limit("a formatted string is over the limit");
    }
    // Python refuses arguments that the pattern does not use, but for a mapping.
    bool all_used = !values_.is(Kind::kTuple) ? (used_ > 0 || values_.is(Kind::kDict) || is_indexable())
                                              : used_ == values_.as<SequenceObject>().items.size();
    if (!all_used) fail("not all arguments converted during string formatting");
    budget_.string(out_.size());
    return std::move(out_);
  }

 private:
  // Python tolerates unused values that have __getitem__ and are no strings or tuples.
  bool is_indexable() const { return values_.is(Kind::kList) || values_.is(Kind::kRange) || values_.is_undefined(); }

  char next() {
    if (at_ >= text_.size()) fail("incomplete format");
    return text_[at_++];
  }

  // A tuple is the list of arguments; anything else is the one argument.
  Value next_value() {
    if (values_.is(Kind::kTuple)) {
      const auto& items = values_.as<SequenceObject>().items;
      if (used_ >= items.size()) fail("not enough arguments for format string");
      return items[used_++];
    }
    if (used_++ > 0) fail("not enough arguments for format string");
    return values_;
  }

  // Negative: of an argument alone.
  int64_t number() {
    // The number is the next argument.
    if (at_ < text_.size() && text_[at_] == '*') {
      ++at_;
      Value value = next_value();
      if (!value.is_integral()) fail("* wants int");
      // Of the smallest integer too, which has no positive counterpart.
      return static_cast<int64_t>(std::clamp<Int>(value.as_int(), -INT32_MAX, INT32_MAX));
    }
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      // At each digit, so that the product cannot overflow.
      if (value > INT32_MAX) fail_limit("a width over {} in a format", INT32_MAX);
    }
    return value;
  }

  void conversion() {
    ++at_;
    left_ = zero_ = plus_ = space_ = alternate_ = false;
    std::optional<Value> named;
    if (at_ < text_.size() && text_[at_] == '(') {
      size_t close = text_.find(')', at_);
      if (close == std::string::npos) fail("incomplete format key");
      if (!values_.is(Kind::kDict)) fail("format requires a mapping");
      std::string key = text_.substr(at_ + 1, close - at_ - 1);
      // A name that the mapping lacks is Python's KeyError.
      const Value* value = values_.as<DictObject>().find(std::string_view(key));
      if (value == nullptr) fail("the format names '{}', which is missing", key);
      named = *value;
      at_ = close + 1;
    }
    // strchr() finds the end of its string too, so a NUL byte of the pattern is excluded. Flags may repeat.
    for (; at_ < text_.size() && std::strchr("-0+ #", text_[at_]) != nullptr && text_[at_] != 0; ++at_) {
      (text_[at_] == '-'   ? left_
       : text_[at_] == '0' ? zero_
       : text_[at_] == '+' ? plus_
       : text_[at_] == ' ' ? space_
                           : alternate_) = true;
    }
    int64_t width = number(), precision = -1;
    // A negative width means to the left.
    left_ |= width < 0;
    width = std::abs(width);
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      precision = std::max<int64_t>(0, number());
    }
    // C's length modifiers, which Python takes and ignores.
    while (at_ < text_.size() && std::strchr("hlL", text_[at_]) != nullptr && text_[at_] != 0) ++at_;
    char type = next();
    // A percent sign by itself: width and flags do nothing to it, and no argument is used.
    if (type == '%') return out_.append("%", pattern_.trusted_at(at_ - 1));
    convert(type, named ? *named : next_value(), width, precision);
  }

  void convert(char type, const Value& value, int64_t width, int64_t precision) {
    MarkedString body;
    bool numeric = type != 0 && std::strchr("diuoxXeEfFgG", type) != nullptr;
    if (type == 's' || type == 'r' || type == 'a') {
      body = type == 's' ? to_str(value, budget_) : type == 'r' ? to_repr(value, budget_) : to_ascii(value, budget_);
      // In characters, not bytes.
      if (precision >= 0) body = body.range(0, byte_offset(body.text(), static_cast<size_t>(precision)));
    } else if (type == 'c') {
      body = character(value);
    } else if (numeric) {
      body = MarkedString(
          std::strchr("diuoxX", type) != nullptr ? integer(type, value, precision) : real(type, value, precision),
          true);
    } else {
      fail("unsupported format character '{}'", std::string_view(&type, 1));
    }
    auto columns = static_cast<size_t>(width);
    // Zeros stand between the sign, or the prefix of another base, and the digits.
    if (numeric && zero_ && !left_ && body.size() < columns) {
      budget_.string(columns);
      size_t digits = body.text()[0] == '-' || body.text()[0] == '+' || body.text()[0] == ' ' ? 1 : 0;
      if (alternate_ && std::strchr("oxX", type) != nullptr) digits += 2;
      std::string padded = body.text();
      padded.insert(digits, columns - body.size(), '0');
      body = MarkedString(padded, true);
    }
    out_.append(pad(body, columns, left_ ? Ends::kRight : Ends::kLeft, MarkedString(" ", true), budget_));
  }

  MarkedString character(const Value& value) {
    if (value.is_string() && count_code_points(value.as_text()) == 1) return value.as_marked();
    if (!value.is_integral()) fail("%c requires int or char");
    Int code = value.as_int();
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<uint32_t>(code));
    // An integer may be what the request sent, so a character that it stands for is not trusted.
    return MarkedString(text, false);
  }

  std::string sign(bool negative) const { return negative ? "-" : plus_ ? "+" : space_ ? " " : ""; }

  std::string integer(char type, const Value& value, int64_t precision) {
    require_defined(value);
    bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!value.is_integral() && !(decimal && value.is(Kind::kFloat))) {
      fail("%{} format: a number is required, not {}", type, type_name(value));
    }
    // %d of a float drops its fraction; %x and %o take integers only.
    Int number = value.is_integral() ? value.as_int() : float_to_int(value.as_float());
    std::string digits = decimal ? int_to_string(number) : "";
    if (decimal && number < 0) digits.erase(0, 1);
    // As unsigned, since the smallest integer has no positive counterpart.
    auto magnitude = number < 0 ? -static_cast<unsigned __int128>(number) : static_cast<unsigned __int128>(number);
    unsigned base = type == 'o' ? 8 : 16;
    const char* symbols = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    while (!decimal && (magnitude != 0 || digits.empty())) {
      digits.insert(digits.begin(), symbols[static_cast<unsigned>(magnitude % base)]);
      magnitude /= base;
    }
    if (precision > kMaxPrecision)
      fail_limit("a precision of {} in a format; the limit is {}", precision, kMaxPrecision);
    if (precision > static_cast<int64_t>(digits.size())) {
      digits.insert(0, static_cast<size_t>(precision) - digits.size(), '0');
    }
    if (alternate_ && !decimal) digits = std::string("0") + type + digits;
    return sign(number < 0) + digits;
  }

  std::string real(char type, const Value& value, int64_t precision) {
    require_defined(value);
    if (!value.is_number()) fail("must be real number, not {}", type_name(value));
    if (precision > kMaxPrecision)
      fail_limit("a precision of {} in a format; the limit is {}", precision, kMaxPrecision);
    double number = value.as_float();
    char format[] = {'%', '#', '.', '*', type, 0};
    if (!alternate_) std::memmove(format + 1, format + 2, 4);
    // The longest number has 309 digits, a point and kMaxPrecision digits behind it.
    char buffer[1024];
    // The absolute value: the sign is made by sign(), by the flags, and NaN has none.
    int size = std::snprintf(buffer, sizeof buffer, format, precision < 0 ? 6 : static_cast<int>(precision),
                             std::fabs(number));
    return sign(std::signbit(number) && !std::isnan(number)) + std::string(buffer, static_cast<size_t>(size));
  }

  const MarkedString& pattern_;
  const std::string& text_;
  const Value& values_;
  Budget& budget_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool left_ = false, zero_ = false, plus_ = false, space_ = false, alternate_ = false;
  MarkedString out_;
};

}  // namespace

MarkedString percent_format(const MarkedString& pattern, const Value& values, Budget& budget) {
  return PercentFormat(pattern, values, budget).run();
}

}  // namespace millrace::jinja
