#include "text/jinja/brace_format.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/attributes.h"
#include "text/jinja/code_points.h"
#include "text/jinja/percent_format.h"
#include "text/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

// The grammar of Python's "Format Specification Mini-Language", less what header and errors name:
// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  bool empty = false;
  std::string fill = " ";
  char align = 0;
  std::string sign;
  bool has_sign = false;  // also of "-", which asks for nothing
  bool alternate = false;
  bool zero = false;
  bool comma = false;
  size_t width = 0;
  std::string precision;
  char type = 0;
};

constexpr size_t kMaxFormatDigits = 9;

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// Nine digits fit every integer type below, so that std::stoul() cannot throw; the budget refuses a width that large.
std::string take_digits(std::string_view text, size_t& at) {
  size_t begin = at;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  if (at - begin > kMaxFormatDigits) fail_limit("a number of {} digits in a format", at - begin);
  return std::string(text.substr(begin, at - begin));
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  spec.empty = text.empty();
  bool has_fill = false;
  size_t at = 0;
  if (!text.empty()) {
    size_t end = 0;
    next_code_point(text, end);
    // The fill is any one character, an alignment itself included: it is one only where an alignment follows.
    if (end < text.size() && is_align(text[end])) {
      spec.fill = text.substr(0, end);
      spec.align = text[end];
      has_fill = true;
      at = end + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  auto take = [&](char c) { return at < text.size() && text[at] == c && (++at, true); };
  if (take('+'))
    spec.sign = "+";
  else if (take(' '))
    spec.sign = " ";
  spec.has_sign = !spec.sign.empty() || take('-');  // '-' is the default, and so dropped
  spec.alternate = take('#');
  // With a fill of its own it is the first digit of the width.
  spec.zero = !has_fill && take('0');
  if (spec.zero) spec.fill = "0";
  std::string width = take_digits(text, at);
  if (!width.empty()) spec.width = std::stoul(width);
  spec.comma = take(',');
  if (take('.')) {
    spec.precision = "." + take_digits(text, at);
    if (spec.precision == ".") fail("Format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  // What is left over is no specification that this knows.
  if (at != text.size()) fail("invalid format specifier '{}'", text);
  return spec;
}

// Types with a prefix in the alternate form.
bool is_based(char type) { return type == 'b' || type == 'o' || type == 'x' || type == 'X'; }

// As unsigned, since the smallest integer has no positive counterpart. %-formatting has no binary.
std::string to_binary(Int value) {
  std::string digits;
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  for (; rest != 0 || digits.empty(); rest /= 2) digits.insert(digits.begin(), rest % 2 != 0 ? '1' : '0');
  return (value < 0 ? "-" : "") + digits;
}

class BraceFormat {
 public:
  BraceFormat(Evaluator& evaluator, const MarkedString& pattern, const Arguments& arguments)
      : evaluator_(evaluator), pattern_(pattern), text_(pattern.text()), arguments_(arguments) {}

  MarkedString run() {
    for (size_t at = 0; at < text_.size();) {
      size_t brace = text_.find_first_of("{}", at);
      if (brace == std::string::npos) brace = text_.size();
      append(pattern_.range(at, brace));
      at = brace;
      if (at >= text_.size()) break;
      // Doubled braces are one brace each, with the mark of the first.
      if (text_.substr(at, 2) == "{{" || text_.substr(at, 2) == "}}") {
        append(pattern_.range(at, at + 1));
        at += 2;
      } else if (text_[at] == '}') {
        fail("Single '}}' encountered in format string");
      } else {
        // No nesting: a '}' inside of a specification would end the field, and '{' in it is refused below.
        size_t end = text_.find('}', at);
        if (end == std::string::npos) fail("Single '{{' encountered in format string");
        field(std::string_view(text_).substr(at + 1, end - at - 1));
        at = end + 1;
      }
    }
    return std::move(out_);
  }

 private:
  void append(const MarkedString& text) {
    evaluator_.budget().string(text.size());
    // The budget bounds each part by itself; this bounds their sum.
    if (out_.size() + text.size() > evaluator_.budget().limits().max_string_bytes) {
      fail_limit("a formatted string is over the limit");
    }
    out_.append(text);
  }

  // name[!conversion][:spec]. The specification goes from the first colon on, so it is cut off before the conversion is
  // looked for.
  void field(std::string_view field) {
    if (field.find('{') != std::string_view::npos) fail("nested fields in format() are not supported");
    size_t colon = field.find(':');
    Spec spec = parse_spec(colon == std::string_view::npos ? std::string_view() : field.substr(colon + 1));
    std::string_view name = field.substr(0, colon);
    char conversion = 0;
    if (size_t bang = name.find('!'); bang != std::string_view::npos) {
      if (name.size() != bang + 2) fail("a conversion in format() wants one letter");
      conversion = name[bang + 1];
      name = name.substr(0, bang);
    }
    Value value = look_up(name);
    if (conversion == 's') {
      value = Value::string(evaluator_.str(value));
    } else if (conversion == 'r') {
      value = Value::string(to_repr(value, evaluator_.budget()));
    } else if (conversion == 'a') {
      value = Value::string(to_ascii(value, evaluator_.budget()));
    } else if (conversion != 0) {
      fail("unknown conversion '{}' in format()", std::string_view(&conversion, 1));
    }
    format(value, spec);
  }

  Value look_up(std::string_view path) {
    size_t end = path.find_first_of(".[");
    std::string first(path.substr(0, end));
    Value value = argument(first);
    std::string_view rest = end == std::string_view::npos ? std::string_view() : path.substr(end);
    while (!rest.empty()) {
      if (rest[0] == '.') {
        size_t stop = rest.find_first_of(".[", 1);
        // By the same function as a template's own `x.name`: it finds what Jinja's sandbox allows and nothing else, so
        // that "{0.__class__}" gives no more than it does there.
        value = get_attribute(evaluator_, value, rest.substr(1, stop - 1));
        rest = stop == std::string_view::npos ? std::string_view() : rest.substr(stop);
      } else {
        size_t stop = rest.find(']');
        if (rest[0] != '[' || stop == std::string_view::npos) fail("Missing ']' in format string");
        std::string key(rest.substr(1, stop - 1));
        // As in Python, x[0] is an index and x[-1] or x[a] a key.
        bool digits =
            !key.empty() && key.size() < kMaxFormatDigits && key.find_first_not_of("0123456789") == std::string::npos;
        value = get_item(evaluator_, value, digits ? Value::integer(std::stol(key)) : Value::string(key, true));
        require_defined(value);
        rest.remove_prefix(stop + 1);
      }
    }
    return value;
  }

  Value argument(const std::string& name) {
    bool digits = name.find_first_not_of("0123456789") == std::string::npos;
    if (digits) {
      if (name.size() > kMaxFormatDigits) fail("the field '{}' of format() is out of range", name);
      // Empty names count up: "{} {}" is "{0} {1}".
      size_t index = name.empty() ? next_++ : std::stoul(name);
      if (index >= arguments_.positional.size())
        fail("Replacement index {} out of range for positional args tuple", index);
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    fail("format() has no argument '{}'", name);
  }

  // Only an empty specification is str(); without one, a type that is neither number nor string has none in Python.
  void format(const Value& value, const Spec& spec) {
    if (spec.empty) return append(evaluator_.str(value));
    require_defined(value);
    if (value.is_number()) return format_number(value, spec);
    if (!value.is_string()) fail("unsupported format string passed to {}.__format__", type_name(value));
    if (spec.type != 0 && spec.type != 's') {
      fail("Unknown format code '{}' for object of type 'str'", std::string_view(&spec.type, 1));
    }
    if (spec.has_sign) fail("Sign not allowed in string format specifier");
    if (spec.alternate) fail("Alternate form (#) not allowed in string format specifier");
    if (spec.comma) fail("Cannot specify ',' with 's'.");
    if (spec.align == '=') fail("'=' alignment not allowed in string format specifier");
    MarkedString body = value.as_marked();
    if (!spec.precision.empty()) {
      body = body.range(0, byte_offset(body.text(), std::stoul(spec.precision.substr(1))));
    }
    put(body, spec.width, spec.align != 0 ? spec.align : '<', spec.fill);
  }

  void format_number(const Value& value, const Spec& spec) {
    // Python's default; a 0 before the width pads behind the sign.
    const char align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
    if (spec.type == 'c') return put(character(value, spec), spec.width, align, spec.fill);
    std::string text = number(value, spec), sign = spec.sign;
    if (text[0] == '-') {
      sign = "-";
      text.erase(0, 1);
    }
    if (spec.alternate && is_based(spec.type)) sign += std::string("0") + spec.type;
    if (spec.comma) text = with_commas(text, align == '=' && spec.fill == "0" ? spec.width : 0, sign.size());
    if (align != '=') return put(MarkedString(sign + text, true), spec.width, align, spec.fill);
    // Sign and prefix go out first, and the fill stands between them and the digits.
    append(MarkedString(sign, true));
    put(MarkedString(text, true), spec.width < sign.size() ? 0 : spec.width - sign.size(), '>', spec.fill);
  }

  void put(const MarkedString& body, size_t width, char align, const std::string& fill) {
    const Ends ends = align == '<' ? Ends::kRight : align == '^' ? Ends::kBoth : Ends::kLeft;
    append(pad_field(body, width, ends, MarkedString(fill, true)));
  }

  // format() centres with the odd fill character on the right, unlike str.center().
  MarkedString pad_field(const MarkedString& body, size_t width, Ends ends, const MarkedString& fill) {
    if (ends != Ends::kBoth) return pad(body, width, ends, fill, evaluator_.budget());
    size_t length = count_code_points(body.text());
    if (width <= length) return body;
    // Half of the fill, rounded down, before the text, then the rest behind it.
    MarkedString left = pad(body, length + (width - length) / 2, Ends::kLeft, fill, evaluator_.budget());
    return pad(left, width, Ends::kRight, fill, evaluator_.budget());
  }

  MarkedString percent(const std::string& pattern, const Value& value) {
    return percent_format(MarkedString(pattern, true), make_tuple({value}), evaluator_.budget());
  }

  MarkedString character(const Value& value, const Spec& spec) {
    if (!value.is_integral()) fail("Unknown format code 'c' for object of type 'float'");
    if (spec.has_sign || spec.alternate || spec.comma || !spec.precision.empty()) {
      fail("Sign, '#', ',' and precision are not allowed with integer format specifier 'c'");
    }
    return percent("%c", value);
  }

  // Through %-formatting, which knows the same number types: digits, with '-' where it is negative. Neither width nor
  // fill nor prefix: format_number() adds them, which knows more alignments than %.
  std::string number(const Value& value, const Spec& spec) {
    static constexpr std::string_view kIntegers = "dboxX", kReals = "eEfFgG%";
    const bool real = kReals.find(spec.type) != std::string_view::npos;
    if (spec.type != 0 && !real && (!value.is_integral() || kIntegers.find(spec.type) == std::string_view::npos)) {
      fail("Unknown format code '{}' for object of type '{}'", std::string_view(&spec.type, 1), type_name(value));
    }
    if (value.is_integral() && !real) {
      if (!spec.precision.empty()) fail("Precision not allowed in integer format specifier");
      if (spec.comma && is_based(spec.type)) fail("Cannot specify ',' with '{}'.", std::string_view(&spec.type, 1));
      if (spec.type == 'b') return to_binary(value.as_int());
      return percent(std::string("%") + (spec.type != 0 ? spec.type : 'd'), value).text();
    }
    // Without a type a float prints as str() of it does, with as many digits as it needs.
    if (spec.type == 0) return spec.precision.empty() ? float_repr(value.as_float()) : shortest(value, spec);
    const std::string pattern = std::string(spec.alternate ? "%#" : "%") + spec.precision;
    if (spec.type != '%') return percent(pattern + spec.type, value).text();
    // The value in percent: "f" and a percent sign, which %-formatting writes as two.
    return percent(pattern + "f%%", Value::real(value.as_float() * 100)).text();
  }

  // As "g", but with a digit behind the point, and with an exponent from one digit less on (Py_DTSF_ADD_DOT_0 of
  // CPython): {:.3} of 1.0 is 1.0, and of 100.0 it is 1e+02.
  std::string shortest(const Value& value, const Spec& spec) {
    const std::string general = percent((spec.alternate ? "%#" : "%") + spec.precision + "g", value).text();
    if (!std::isfinite(value.as_float())) return general;
    const unsigned long digits = std::max(1UL, std::stoul(spec.precision.substr(1)));
    const std::string scientific = percent(fmt::format("%.{}e", digits - 1), value).text();
    const size_t e = scientific.find('e');
    if (std::stol(scientific.substr(e + 1)) != static_cast<long>(digits) - 1) {
      return general.find_first_of(".e") == std::string::npos ? general + ".0" : general;
    }
    std::string mantissa = scientific.substr(0, e);
    const bool point = mantissa.find('.') != std::string::npos;
    if (spec.alternate) return mantissa + (point ? "" : ".") + scientific.substr(e);
    if (point) mantissa.erase(mantissa.find_last_not_of('0') + 1);
    if (mantissa.back() == '.') mantissa.pop_back();
    return mantissa + scientific.substr(e);
  }

  // Groups the digits before the point or exponent by three, with zeros before them until sign and number have `width`.
  // A comma never comes first, so there may be one character more.
  std::string with_commas(const std::string& number, size_t width, size_t sign) {
    const size_t end = std::min(number.find_first_not_of("0123456789"), number.size());
    const size_t others = sign + number.size() - end;
    size_t count = end;
    evaluator_.budget().string(width);
    while (others + count + (count > 0 ? (count - 1) / 3 : 0) < width) ++count;
    std::string out;
    for (size_t left = count; left > 0; --left) {
      out += left > end ? '0' : number[end - left];
      if (left > 1 && left % 3 == 1) out += ',';
    }
    return out + number.substr(end);
  }

  Evaluator& evaluator_;
  const MarkedString& pattern_;
  const std::string& text_;
  const Arguments& arguments_;
  size_t next_ = 0;
  MarkedString out_;
};

}  // namespace

MarkedString brace_format(Evaluator& evaluator, const MarkedString& pattern, const Arguments& arguments) {
  return BraceFormat(evaluator, pattern, arguments).run();
}

}  // namespace millrace::jinja
