#include "grammar/regex.h"

#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "grammar/grammar.h"

namespace millrace::grammar {
namespace {

struct Bounds {
  int least = 1;
  int most = 1;
};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexMatch match, CharWriter write)
      : pattern_(pattern), match_(match), write_(write) {}

  Result<ExprPtr> parse() {
    if (pattern_.size() > kMaxSourceBytes) {
      return error(StatusCode::kTooLarge, "the pattern has {} bytes; wanted at most {}", pattern_.size(),
                   kMaxSourceBytes);
    }
    ASSIGN_OR_RETURN(ExprPtr body, alternatives(0));
    if (at_ < pattern_.size()) return refuse("an unmatched ')'");
    return body;
  }

 private:
  bool done() const { return at_ >= pattern_.size(); }
  char peek() const { return done() ? '\0' : pattern_[at_]; }
  bool take(std::string_view words) {
    if (!pattern_.substr(at_).starts_with(words)) return false;
    at_ += words.size();
    return true;
  }
  template <typename... Args>
  Status refuse(fmt::format_string<Args...> what, Args&&... args) const {
    return invalid_argument("the pattern has {} at {}; wanted a regular expression of docs/structured-output.md",
                            fmt::format(what, std::forward<Args>(args)...), at_);
  }

  // Characters by `write_`, as everything else: in a JSON string they are written with its escapes.
  ExprPtr any_text() const { return repeat(write_(CharSet::any()), 0, kUnbounded); }

  Result<ExprPtr> alternatives(int depth) {
    if (depth > kMaxNesting) return refuse("more than {} groups in each other", kMaxNesting);
    std::vector<ExprPtr> parts;
    do {
      ASSIGN_OR_RETURN(ExprPtr part, sequence(depth));
      parts.push_back(std::move(part));
    } while (take("|"));
    return alt(std::move(parts));
  }

  Result<ExprPtr> sequence(int depth) {
    // An anchor speaks of the text's end, so it stands at the ends of an outermost alternative.
    const bool outermost = depth == 0;
    std::vector<ExprPtr> parts;
    // A pattern of a schema may match anywhere (ECMA 262); an expression of a request is the complete text.
    if (outermost && !take("^") && match_ == RegexMatch::kAnywhere) parts.push_back(any_text());
    bool open_end = outermost && match_ == RegexMatch::kAnywhere;
    while (!done() && peek() != '|' && peek() != ')') {
      if (peek() == '^') return refuse("'^' behind the beginning");
      if (peek() == '$') {
        if (!outermost || (at_ + 1 < pattern_.size() && pattern_[at_ + 1] != '|')) return refuse("'$' before the end");
        ++at_;
        open_end = false;
        break;
      }
      ASSIGN_OR_RETURN(ExprPtr part, repeated(depth));
      parts.push_back(std::move(part));
    }
    if (open_end) parts.push_back(any_text());
    return seq(std::move(parts));
  }

  Result<ExprPtr> repeated(int depth) {
    ASSIGN_OR_RETURN(ExprPtr part, atom(depth));
    ASSIGN_OR_RETURN(const std::optional<Bounds> bounds, quantifier());
    if (!bounds) return part;
    if (peek() == '+') return refuse("a possessive quantifier");
    take("?");  // lazy: another match, the same language
    ASSIGN_OR_RETURN(const std::optional<Bounds> second, quantifier());
    if (second) return refuse("a quantifier behind a quantifier");
    return repeat(std::move(part), bounds->least, bounds->most);
  }

  Result<std::optional<Bounds>> quantifier() {
    if (take("*")) return std::optional(Bounds{0, kUnbounded});
    if (take("+")) return std::optional(Bounds{1, kUnbounded});
    if (take("?")) return std::optional(Bounds{0, 1});
    if (peek() != '{') return std::optional<Bounds>();
    const std::size_t begin = at_++;
    const std::optional<int> least = number();
    Bounds bounds{least.value_or(0), least.value_or(0)};
    const bool comma = take(",");
    if (comma) bounds.most = number().value_or(kUnbounded);
    if ((!least && (!comma || bounds.most == kUnbounded)) || !take("}")) {
      at_ = begin;  // a brace by itself, as in most dialects
      return std::optional<Bounds>();
    }
    if (bounds.least > kMaxRepeat || bounds.most > kMaxRepeat)
      return refuse("a repetition of more than {}", kMaxRepeat);
    if (bounds.most != kUnbounded && bounds.most < bounds.least)
      return refuse("a repetition whose end is before its start");
    return std::optional(bounds);
  }

  std::optional<int> number() {
    if (done() || peek() < '0' || peek() > '9') return std::nullopt;
    int value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min(value * 10 + (peek() - '0'), kMaxRepeat + 1);
    return value;
  }

  Result<ExprPtr> atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) {
      ASSIGN_OR_RETURN(const CharSet set, char_class());
      return write_(set);
    }
    if (take(".")) {
      CharSet line_end = CharSet::of("\n");
      if (match_ == RegexMatch::kAnywhere) {  // ECMA 262 knows more of them than Python
        line_end.add('\r', '\r');
        line_end.add(0x2028, 0x2029);
      }
      return write_(line_end.complement());
    }
    if (peek() == '*' || peek() == '+' || peek() == '?') return refuse("'{}' with nothing to repeat", peek());
    ASSIGN_OR_RETURN(const CharSet set, character(false));
    return write_(set);
  }

  Result<ExprPtr> group(int depth) {
    if (take("?")) {
      // What looks around is no concatenation of languages; it would need an intersection, so it is refused by name.
      if (take("<=") || take("<!") || take("=") || take("!")) return refuse("look-around");
      if (take("P<") || take("<")) {
        while (!done() && peek() != '>') ++at_;
        if (!take(">")) return refuse("a group's name without '>'");
      } else if (!take(":")) {
        return refuse("an unknown kind of group");
      }
    }
    ASSIGN_OR_RETURN(ExprPtr inside, alternatives(depth + 1));
    if (!take(")")) return refuse("an open group");
    return inside;
  }

  Result<CharSet> char_class() {
    const bool negated = take("^");
    CharSet set;
    // A ']' that comes first is a character of the class.
    for (bool first = true; first || peek() != ']'; first = false) {
      if (done()) return refuse("an open class");
      if (pattern_.substr(at_).starts_with("[:")) return refuse("a POSIX class");
      ASSIGN_OR_RETURN(const CharSet low, character(true));
      // A '-' before the closing bracket, or behind a class such as \d, is a character.
      const bool range = peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']' && single(low);
      if (!range) {
        set.add(low);
        continue;
      }
      ++at_;
      ASSIGN_OR_RETURN(const CharSet high, character(true));
      if (!single(high)) return refuse("a range to a class");
      if (high.ranges()[0].low < low.ranges()[0].low) return refuse("a range whose end is before its start");
      set.add(low.ranges()[0].low, high.ranges()[0].low);
    }
    ++at_;
    return negated ? set.complement() : set;
  }

  static bool single(const CharSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].low == set.ranges()[0].high;
  }

  // One character, or the class of an escape.
  Result<CharSet> character(bool in_class) {
    if (!take("\\")) {
      const int64_t c = utf8_next(pattern_, at_);
      if (c < 0) return refuse("bytes that are not UTF-8");
      return CharSet(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
    }
    if (done()) return refuse("a '\\' at the end");
    const char letter = peek();
    constexpr std::string_view kClasses = "dDwWsS", kNames = "nrtfv0", kValues("\n\r\t\f\v\0", 6);
    if (kClasses.find(letter) != kClasses.npos) return ++at_, regex_class(letter);
    if (const std::size_t name = kNames.find(letter); name != kNames.npos) {
      ++at_;
      return CharSet(static_cast<unsigned char>(kValues[name]), static_cast<unsigned char>(kValues[name]));
    }
    if (in_class && letter == 'b') return ++at_, CharSet(8, 8);
    if (letter == 'x' || letter == 'u') return code_point();
    // Letters and digits are refused, since in other dialects they mean something: \b, \1, \p. Anything else escaped is
    // itself.
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '1' && letter <= '9')) {
      return refuse("'\\{}'", letter);
    }
    const int64_t c = utf8_next(pattern_, at_);
    if (c < 0) return refuse("bytes that are not UTF-8");
    return CharSet(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
  }

  // \xHH, \uHHHH, \u{H...}; two surrogates are one character.
  Result<CharSet> code_point() {
    const bool braces = pattern_.substr(at_ + 1).starts_with("{");
    const std::size_t digits = pattern_[at_] == 'x' ? 2 : 4;
    at_ += braces ? 2 : 1;
    std::optional<uint32_t> c = hex(braces ? 1 : digits, braces ? 6 : digits);
    if (!c || (braces && !take("}"))) return refuse("an escape without its hexadecimal digits");
    // JSON and ECMA 262 write characters beyond 16 bits as two escapes.
    if (*c >= 0xD800 && *c <= 0xDBFF && take("\\u")) {
      const std::optional<uint32_t> low = hex(4, 4);
      if (!low || *low < 0xDC00 || *low > 0xDFFF) return refuse("half of a surrogate pair");
      c = 0x10000 + ((*c - 0xD800) << 10) + (*low - 0xDC00);
    }
    if (*c > kMaxCodePoint || (*c >= 0xD800 && *c <= 0xDFFF)) return refuse("an escape of no character");
    return CharSet(*c, *c);
  }

  std::optional<uint32_t> hex(std::size_t least, std::size_t most) {
    uint32_t value = 0;
    std::size_t count = 0;
    for (; count < most && !done(); ++count, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return count >= least ? std::optional(value) : std::nullopt;
  }

  const std::string_view pattern_;
  const RegexMatch match_;
  const CharWriter write_;
  std::size_t at_ = 0;
};

}  // namespace

CharSet regex_class(char letter) {
  CharSet set;
  switch (letter | 0x20) {
    case 'd':
      set.add('0', '9');
      break;
    case 'w':
      set.add('0', '9'), set.add('A', 'Z'), set.add('a', 'z'), set.add('_', '_');
      break;
    default:
      set = CharSet::of(" \t\n\r\f\v");
      break;
  }
  return letter & 0x20 ? set : set.complement();
}

Result<ExprPtr> parse_regex(std::string_view pattern, RegexMatch match, CharWriter write) {
  return RegexParser(pattern, match, write).parse();
}

}  // namespace millrace::grammar
