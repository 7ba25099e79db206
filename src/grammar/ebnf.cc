#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "base/utf8.h"
#include "grammar/regex.h"

namespace millrace::grammar {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class EbnfParser {
 public:
  explicit EbnfParser(std::string_view source) : source_(source) {}

  Result<Rules> parse() {
    if (source_.size() > kMaxSourceBytes) {
      return error(StatusCode::kTooLarge, "the grammar has {} bytes; wanted at most {}", source_.size(),
                   kMaxSourceBytes);
    }
    number_of("root");
    for (skip(true); at_ < source_.size(); skip(true)) RETURN_IF_ERROR(definition());
    for (std::size_t i = 0; i < rules_.bodies.size(); ++i) {
      if (!rules_.bodies[i]) return invalid_argument("the grammar has no rule '{}'; wanted one", rules_.names[i]);
    }
    return std::move(rules_);
  }

 private:
  int number_of(const std::string& name) {
    const auto [known, added] = numbers_.try_emplace(name, static_cast<int>(rules_.bodies.size()));
    if (added) {
      rules_.bodies.push_back(nullptr);
      rules_.names.push_back(name);
    }
    return known->second;
  }

  char peek(std::size_t more = 0) const { return at_ + more < source_.size() ? source_[at_ + more] : '\0'; }
  bool take(std::string_view words) {
    if (!source_.substr(at_).starts_with(words)) return false;
    at_ += words.size();
    return true;
  }
  // Blanks and comments; line ends too, inside a group and between rules.
  void skip(bool lines) {
    while (at_ < source_.size()) {
      if (peek() == '#') {
        while (at_ < source_.size() && peek() != '\n') ++at_;
      } else if (peek() == ' ' || peek() == '\t' || (lines && (peek() == '\n' || peek() == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  template <typename... Args>
  Status refuse(fmt::format_string<Args...> what, Args&&... args) const {
    const auto line = std::count(source_.begin(), source_.begin() + static_cast<std::ptrdiff_t>(at_), '\n') + 1;
    return invalid_argument("the grammar has {} in line {}; wanted the EBNF of docs/structured-output.md",
                            fmt::format(what, std::forward<Args>(args)...), line);
  }

  std::string name() {
    const std::size_t begin = at_;
    while (is_name_char(peek())) ++at_;
    return std::string(source_.substr(begin, at_ - begin));
  }

  Status definition() {
    const std::string rule_name = name();
    if (rule_name.empty()) return refuse("no rule's name");
    skip(true);
    if (!take("::=")) return refuse("no '::=' behind '{}'", rule_name);
    const auto number = static_cast<std::size_t>(number_of(rule_name));
    if (rules_.bodies.size() > kMaxRules) return refuse("more than {} rules", kMaxRules);
    if (rules_.bodies[number]) return refuse("a second rule '{}'", rule_name);
    skip(true);
    ASSIGN_OR_RETURN(rules_.bodies[number], alternatives(0));
    skip(false);
    if (at_ < source_.size() && peek() != '\n' && peek() != '\r') return refuse("'{}' behind a rule", peek());
    return ok_status();
  }

  Result<ExprPtr> alternatives(int depth) {
    if (depth > kMaxNesting) return refuse("more than {} groups in each other", kMaxNesting);
    std::vector<ExprPtr> parts;
    while (true) {
      ASSIGN_OR_RETURN(ExprPtr part, sequence(depth));
      parts.push_back(std::move(part));
      // A line that begins with '|' goes on with the rule before it.
      const std::size_t before = at_;
      skip(true);
      if (!take("|")) {
        if (depth == 0) at_ = before;
        return alt(std::move(parts));
      }
      skip(true);
    }
  }

  Result<ExprPtr> sequence(int depth) {
    std::vector<ExprPtr> parts;
    for (skip(depth > 0);
         is_name_char(peek()) || (peek() != '\0' && std::string_view("\"'[(.").find(peek()) != std::string_view::npos);
         skip(depth > 0)) {
      ASSIGN_OR_RETURN(ExprPtr part, item(depth));
      ASSIGN_OR_RETURN(part, quantified(std::move(part)));
      parts.push_back(std::move(part));
    }
    return seq(std::move(parts));
  }

  Result<ExprPtr> item(int depth) {
    if (take("(")) {
      skip(true);
      ASSIGN_OR_RETURN(ExprPtr inside, alternatives(depth + 1));
      if (!take(")")) return refuse("an open group");
      return inside;
    }
    if (take(".")) return chars(CharSet::any());
    if (peek() == '"' || peek() == '\'') return literal();
    if (take("[")) return char_class();
    return rule(number_of(name()));
  }

  Result<ExprPtr> quantified(ExprPtr part) {
    for (int count = 0;; ++count) {
      if (count > kMaxNesting) return refuse("more than {} repetitions of one item", kMaxNesting);
      if (take("*")) {
        part = repeat(std::move(part), 0, kUnbounded);
      } else if (take("+")) {
        part = repeat(std::move(part), 1, kUnbounded);
      } else if (take("?")) {
        part = optional(std::move(part));
      } else if (take("{")) {
        const std::optional<int> least = number();
        const bool comma = take(",");
        const std::optional<int> most = comma ? number() : least;
        if ((!least && !most) || !take("}")) return refuse("a repetition without its numbers");
        if (least.value_or(0) > kMaxRepeat || most.value_or(0) > kMaxRepeat) {
          return refuse("a repetition of more than {}", kMaxRepeat);
        }
        if (most && *most < least.value_or(0)) return refuse("a repetition whose end is before its start");
        part = repeat(std::move(part), least.value_or(0), most.value_or(kUnbounded));
      } else {
        return part;
      }
    }
  }

  std::optional<int> number() {
    std::optional<int> value;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      value = std::min(value.value_or(0) * 10 + (peek() - '0'), kMaxRepeat + 1);
    return value;
  }

  Result<ExprPtr> literal() {
    const char quote = source_[at_++];
    std::string bytes;
    while (peek() != quote) {
      ASSIGN_OR_RETURN(const uint32_t c, character());
      bytes += utf8(c);
    }
    ++at_;
    return text(std::move(bytes));
  }

  Result<ExprPtr> char_class() {
    const bool negated = take("^");
    CharSet set;
    while (!take("]")) {
      if (take("\\d")) {
        set.add(regex_class('d'));
        continue;
      }
      if (take("\\w")) {
        set.add(regex_class('w'));
        continue;
      }
      if (take("\\s")) {
        set.add(regex_class('s'));
        continue;
      }
      ASSIGN_OR_RETURN(const uint32_t low, character());
      uint32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        ASSIGN_OR_RETURN(high, character());
        if (high < low) return refuse("a range whose end is before its start");
      }
      set.add(low, high);
    }
    return chars(negated ? set.complement() : set);
  }

  // One character of a literal or a class, escapes read.
  Result<uint32_t> character() {
    if (at_ >= source_.size() || peek() == '\n') return refuse("an open quotation or class");
    if (!take("\\")) {
      const int64_t c = utf8_next(source_, at_);
      if (c < 0) return refuse("bytes that are not UTF-8");
      return static_cast<uint32_t>(c);
    }
    const char letter = peek();
    ++at_;
    switch (letter) {
      case 'n':
        return uint32_t{'\n'};
      case 'r':
        return uint32_t{'\r'};
      case 't':
        return uint32_t{'\t'};
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '\\':
      case '"':
      case '\'':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
      case '.':
        return static_cast<uint32_t>(letter);
      default:
        return refuse("the escape '\\{}'", letter);
    }
  }

  Result<uint32_t> hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      if (!std::isxdigit(static_cast<unsigned char>(c))) return refuse("an escape without its hexadecimal digits");
      value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) return refuse("an escape of no character");
    return value;
  }

  const std::string_view source_;
  std::size_t at_ = 0;
  Rules rules_;
  std::map<std::string, int> numbers_;
};

}  // namespace

Result<Rules> parse_ebnf(std::string_view source) { return EbnfParser(source).parse(); }

}  // namespace millrace::grammar
