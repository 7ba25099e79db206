#include "text/regex_syntax.h"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

// Oniguruma's \w in Unicode: it counts marks and some numbers that PCRE2 10.42 leaves out (found over all code points).
constexpr std::string_view kWordSet =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}"
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr std::string_view kHexSet = "0-9A-Fa-f";

bool is_category(std::string_view name) {
  static constexpr std::array<std::string_view, 39> kNames = {
      "Any", "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "L&", "M",  "Mn", "Mc", "Me", "N",
      "Nd",  "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
      "Sc",  "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn", "Cs"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else if (in_set_) {
        RETURN_IF_ERROR(set_character(c));
      } else {
        RETURN_IF_ERROR(character(c));
      }
    }
    return std::move(out_);
  }

 private:
  Status unsupported(std::string_view what) const {
    return error(StatusCode::kUnsupported, "the pattern uses {} (at byte {}); this build cannot run that", what, at_);
  }
  void copy(size_t count) {
    count = std::min(count, in_.size() - at_);
    out_.append(in_, at_, count);
    at_ += count;
  }
  void put_set(std::string_view set, bool negated) {
    if (in_set_) {
      out_.append(set);
    } else {
      out_.append(negated ? "[^" : "[").append(set).append("]");
    }
    at_ += 2;
  }

  Status escape() {
    if (at_ + 1 >= in_.size()) return invalid_argument("the pattern ends with a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 'w':
      case 'h':
        put_set(c == 'w' ? kWordSet : kHexSet, false);
        return ok_status();
      case 'W':
      case 'H':
        if (in_set_) return unsupported("\\W or \\H inside a set");
        put_set(c == 'W' ? kWordSet : kHexSet, true);
        return ok_status();
      case 'b':
      case 'B':
        if (!in_set_) return unsupported("\\b or \\B");
        copy(2);
        return ok_status();
      case 'u':
        if (at_ + 6 > in_.size()) return invalid_argument("the pattern ends inside \\u");
        out_.append("\\x{").append(in_.substr(at_ + 2, 4)).append("}");
        at_ += 6;
        return ok_status();
      case 'p':
      case 'P':
        return property();
      default:
        copy(2);
        return ok_status();
    }
  }

  // A bare script name means the Script property in Oniguruma and Script_Extensions in PCRE2.
  Status property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      return unsupported("\\p without braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    out_.append(in_.substr(at_, 3));
    if (name.starts_with('^')) {
      out_ += '^';
      name.remove_prefix(1);
    }
    if (!is_category(name)) out_ += "sc:";
    out_.append(name).append("}");
    at_ = close + 1;
    return ok_status();
  }

  Status set_character(char c) {
    if (c == '[') {
      if (in_.substr(at_, 2) != "[:") return unsupported("a set inside a set");
      const size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) return unsupported("a set inside a set");
      copy(close + 2 - at_);
      return ok_status();
    }
    if (in_.substr(at_, 2) == "&&") return unsupported("an intersection of sets");
    if (c == ']') in_set_ = false;
    copy(1);
    return ok_status();
  }

  Status character(char c) {
    if (c == '[') {
      in_set_ = true;
      copy(in_.substr(at_, 2) == "[^" ? 2 : 1);
      return ok_status();
    }
    if (c == '(' && in_.substr(at_, 2) == "(?") return group();
    if (c == '{') return interval();
    copy(1);
    return ok_status();
  }

  // (?imx-imx: and (?imx): Ruby's m lets the dot match a newline, which is PCRE2's s.
  Status group() {
    const size_t end = in_.find_first_not_of("imx-", at_ + 2);
    const bool flags = end != std::string_view::npos && (in_[end] == ':' || in_[end] == ')') && end > at_ + 2;
    copy(2);
    if (!flags) return ok_status();
    for (; at_ < end; ++at_) out_ += in_[at_] == 'm' ? 's' : in_[at_];
    return ok_status();
  }

  // {n}, {n,}, {n,m} read alike; {,m} starts at 0 in Ruby; a + after an interval repeats it there, and is possessive
  // here.
  Status interval() {
    const size_t close = in_.find_first_not_of("0123456789,", at_ + 1);
    const bool counted = close != std::string_view::npos && in_[close] == '}' && close > at_ + 1;
    if (counted && in_[at_ + 1] == ',') {
      out_ += "{0";
      ++at_;
    } else if (!counted) {
      copy(1);
      return ok_status();
    }
    copy(close + 1 - at_);
    if (at_ < in_.size() && in_[at_] == '+') return unsupported("an interval followed by +");
    return ok_status();
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  bool in_set_ = false;
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace millrace
