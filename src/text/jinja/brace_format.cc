#include "text/jinja/brace_format.h"

#include "text/jinja/attributes.h"
#include "text/jinja/percent_format.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace millrace::jinja {
namespace {

// The grammar of Python's "Format Specification Mini-Language", less what header and errors name:
// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = 0;
  std::string sign;
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
  size_t at = 0;
  if (!text.empty()) {
    size_t end = 0;
    next_code_point(text, end);
    // The fill is any one character, an alignment itself included: it is one only where an alignment follows.
    if (end < text.size() && is_align(text[end])) {
      spec.fill = text.substr(0, end);
      spec.align = text[end];
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
  else
    // '-' is the default, and so dropped.
    take('-');
  spec.alternate = take('#');
  spec.zero = take('0');
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

// Groups the digits before the point or exponent. Signs stay outside: the search begins at the first digit.
std::string with_commas(std::string number) {
  size_t begin = number.find_first_of("0123456789"), end = number.find_first_not_of("0123456789", begin);
  if (begin == std::string::npos) return number;
  if (end == std::string::npos) end = number.size();
  for (size_t at = end; at > begin + 3;) {
    at -= 3;
    number.insert(at, ",");
  }
  return number;
}

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

  // The body through %-formatting, which knows the same number types; then grouping and alignment.
  void format(const Value& value, const Spec& spec) {
    MarkedString body;
    bool numeric = value.is(Kind::kInt) || value.is(Kind::kFloat) || (value.is(Kind::kBool) && spec.type != 0);
    if (numeric && (spec.type != 0 || !spec.sign.empty() || spec.comma || !spec.precision.empty())) {
      body = MarkedString(number(value, spec), true);
    } else {
      if (spec.type != 0 && spec.type != 's') fail("unknown format code for an object of type '{}'", type_name(value));
      body = evaluator_.str(value);
      if (!spec.precision.empty()) {
        body = body.range(0, byte_offset(body.text(), std::stoul(spec.precision.substr(1))));
      }
    }
    // Python's defaults: numbers to the right, everything else to the left; a 0 before the width pads behind the sign.
    char align = spec.align != 0 ? spec.align : spec.zero ? '=' : numeric ? '>' : '<';
    MarkedString fill(spec.align == 0 && spec.zero ? "0" : spec.fill, true);
    size_t sign = 0;
    if (align == '=' && !body.empty() && (body.text()[0] == '-' || body.text()[0] == '+' || body.text()[0] == ' '))
      sign = 1;
    // With '=' the sign goes out first, and the fill stands between it and the digits.
    append(body.range(0, sign));
    Ends ends = align == '<' ? Ends::kRight : align == '^' ? Ends::kBoth : Ends::kLeft;
    append(pad_field(body.range(sign, body.size()), spec.width < sign ? 0 : spec.width - sign, ends, fill));
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

  std::string number(const Value& value, const Spec& spec) {
    if (spec.type == 'b') return to_binary(value.as_int());
    std::string type(1, spec.type != 0 ? spec.type : value.is(Kind::kFloat) ? 'g' : 'd');
    Value shown = value;
    // The value in percent: "f" and a percent sign, which %-formatting writes as two.
    if (spec.type == '%') {
      type = "f%%";
      shown = Value::real(value.as_float() * 100);
    }
    // Without a type a float prints as str() of it does, with as many digits as it needs.
    if (spec.type == 0 && value.is(Kind::kFloat) && spec.precision.empty()) {
      std::string text = float_repr(value.as_float());
      if (text[0] != '-') text = spec.sign + text;
      return spec.comma ? with_commas(text) : text;
    }
    if (value.is(Kind::kFloat) && (type == "d" || type == "x" || type == "X" || type == "o")) {
      fail("Unknown format code '{}' for object of type 'float'", type);
    }
    if (value.is_integral() && type == "d" && !spec.precision.empty())
      fail("Precision not allowed in integer format specifier");
    // Neither width nor fill: format() pads, which knows more alignments than %.
    std::string pattern = "%" + spec.sign + (spec.alternate ? "#" : "") + spec.precision + type;
    std::string text = percent_format(MarkedString(pattern, true), make_tuple({shown}), evaluator_.budget()).text();
    return spec.comma ? with_commas(text) : text;
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
