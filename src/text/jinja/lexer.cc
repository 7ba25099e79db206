#include "text/jinja/lexer.h"

#include <algorithm>

#include "base/status.h"
#include "text/jinja/code_points.h"
#include "text/jinja/format.h"
#include "text/jinja/string_literal.h"

namespace millrace::jinja {
namespace {

// As Jinja2: \r\n and \r become \n, and one newline at the end of the template is dropped (keep_trailing_newline off).
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// Longest first, so that the first match wins.
constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  // source_ points into owned_, whose bytes may lie in the string object: a Lexer is neither copied nor moved.
  explicit Lexer(std::string source) : owned_(std::move(source)), source_(owned_) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_until_tag();
    // The parser looks ahead without asking where the tokens end: behind the last one it finds this one.
    push(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  enum class Tag { kNone, kVariable, kBlock, kComment };

  bool starts(std::string_view what) const { return source_.substr(at_, what.size()) == what; }

  // Moves forward by `count` bytes, counting lines.
  void advance(size_t count) {
    CHECK(count <= source_.size() - at_);
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + count, '\n'));
    at_ += count;
  }

  void push(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text)}); }

  // By code points, since Jinja2 skips what Python's \s matches, and that has the spaces of Unicode.
  // The bytes of whitespace from `from` on.
  size_t space_after(size_t from) const {
    size_t at = from;
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at - from;
  }

  // Jinja2 finds the first of the three openings; a "{" before anything else is text.
  void text_until_tag() {
    size_t tag_at = at_;
    Tag tag = Tag::kNone;
    for (; tag_at + 1 < source_.size(); ++tag_at) {
      if (source_[tag_at] != '{') continue;
      char next = source_[tag_at + 1];
      tag = next == '{' ? Tag::kVariable : next == '%' ? Tag::kBlock : next == '#' ? Tag::kComment : Tag::kNone;
      if (tag != Tag::kNone) break;
    }
    if (tag == Tag::kNone) {
      data(source_.substr(at_));
      advance(source_.size() - at_);
      return;
    }
    char sign = tag_at + 2 < source_.size() ? source_[tag_at + 2] : ' ';
    data(strip_before_tag(source_.substr(at_, tag_at - at_), tag, sign));
    advance(tag_at - at_);
    size_t begin_size = sign == '-' || sign == '+' ? 3 : 2;
    if (tag == Tag::kComment) return comment(begin_size);
    if (tag == Tag::kBlock && raw(begin_size)) return;
    // Before advance(), here and below: a token has the line on which it begins, and messages name that one.
    push(tag == Tag::kBlock ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
    advance(begin_size);
    inside(tag == Tag::kBlock);
  }

  void data(std::string_view text) {
    if (!text.empty()) push(TokenKind::kData, std::string(text));
  }

  // "-" removes all whitespace before a tag; without a sign, a block or comment that stands alone on its line loses its
  // indentation (lstrip_blocks).
  std::string_view strip_before_tag(std::string_view text, Tag tag, char sign) const {
    if (sign == '-') {
      while (!text.empty()) {
        size_t begin = previous_boundary(text, text.size());
        size_t position = begin;
        if (!is_space(next_code_point(text, position))) break;
        text = text.substr(0, begin);
      }
      return text;
    }
    // lstrip_blocks never applies to variables: their indentation is part of the prompt.
    if (sign == '+' || tag == Tag::kVariable) return text;
    size_t newline = text.rfind('\n');
    size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    // The text begins in the middle of a line, behind another tag.
    if (line_begin == 0 && !line_starting_) return text;
    for (size_t at = line_begin; at < text.size();) {
      if (!is_space(next_code_point(text, at))) return text;
    }
    return text.substr(0, line_begin);
  }

  // The size of the tag end at `at` ("-%}   ", "+%}", "%}\n"), or 0 when none is there.
  size_t tag_end_size(size_t at, std::string_view end, bool block) const {
    std::string_view rest = source_.substr(at);
    if (rest.substr(0, 1) == "-" && rest.substr(1, end.size()) == end) {
      size_t size = 1 + end.size();
      return size + space_after(at + size);
    }
    if (block && rest.substr(0, 1) == "+" && rest.substr(1, end.size()) == end) return 1 + end.size();
    if (rest.substr(0, end.size()) != end) return 0;
    // "+" above keeps the line break behind a block. That behind a variable goes with "-" alone.
    bool newline = block && rest.substr(end.size(), 1) == "\n";  // trim_blocks
    return end.size() + (newline ? 1 : 0);
  }

  // trim_blocks and "-" take the line break behind a tag along. The text behind it then starts a line although no line
  // break stands before it, and lstrip_blocks has to know that for the next tag.
  void finish_tag(size_t size) {
    CHECK(size > 0);
    advance(size);
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void comment(size_t begin_size) {
    size_t end = source_.find("#}", at_ + begin_size);
    if (end == std::string_view::npos) fail_at(line_, "a comment opens here and never ends; wanted '#}}'");
    bool signed_end = end > at_ + begin_size && (source_[end - 1] == '-' || source_[end - 1] == '+');
    // The sign belongs to the end: "-#}" removes the whitespace behind the comment.
    size_t tag_at = signed_end ? end - 1 : end;
    finish_tag(tag_at - at_ + tag_end_size(tag_at, "#}", true));
  }

  // `{% raw %}` ... `{% endraw %}` becomes data.
  bool raw(size_t begin_size) {
    size_t at = at_ + begin_size;
    at += space_after(at);
    if (source_.substr(at, 3) != "raw") return false;
    at += 3;
    at += space_after(at);
    size_t end_size = source_.substr(at, 2) == "%}" ? 2 : tag_end_size(at, "%}", false);
    if (end_size == 0) return false;
    int opened = line_;
    finish_tag(at + end_size - at_);
    // Tags inside are text, so only a complete endraw counts; an unfinished one is searched past.
    for (size_t begin = source_.find("{%", at_); begin != std::string_view::npos;
         begin = source_.find("{%", begin + 2)) {
      char sign = begin + 2 < source_.size() ? source_[begin + 2] : ' ';
      size_t name = begin + (sign == '-' || sign == '+' ? 3 : 2);
      name += space_after(name);
      if (source_.substr(name, 6) != "endraw") continue;
      size_t close = name + 6 + space_after(name + 6);
      size_t size = tag_end_size(close, "%}", true);
      if (size == 0) continue;
      // "{%- endraw %}" strips the data like any other block; the data itself is never read as tags.
      data(strip_before_tag(source_.substr(at_, begin - at_), Tag::kBlock, sign));
      finish_tag(close + size - at_);
      return true;
    }
    fail_at(opened, "a raw block opens here and never ends; wanted '{{% endraw %}}'");
  }

  // The tokens of one tag, up to and with its end.
  void inside(bool block) {
    std::string brackets;  // the closing brackets that are due
    int opened = line_;
    while (at_ < source_.size()) {
      // Inside brackets "}}" closes two dicts, not the tag: {{ {"a": {}} }}.
      size_t end = brackets.empty() ? tag_end_size(at_, block ? "%}" : "}}", block) : 0;
      if (end > 0) {
        push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
        return finish_tag(end);
      }
      size_t space = space_after(at_);
      if (space > 0) {
        advance(space);
      } else if (!number() && !name() && !string()) {
        operation(brackets);
      }
    }
    fail_at(opened, "a tag opens here and never ends; wanted '{}'", block ? "%}" : "}}");
  }

  bool is_digit(size_t at) const { return at < source_.size() && source_[at] >= '0' && source_[at] <= '9'; }

  // Python's literals (PEP 515), as Jinja2's lexer has them.
  // The end of a run of digits that single underscores may separate.
  size_t digits_end(size_t at) const {
    while (is_digit(at) || (at < source_.size() && source_[at] == '_' && is_digit(at + 1))) ++at;
    return at;
  }

  bool number() {
    if (!is_digit(at_)) return false;
    // In "x.0.1" the digits behind a dot are indices, never the float 0.1.
    bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t integer_end = digits_end(at_);
    size_t end = integer_end;
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.' && is_digit(end + 1)) end = digits_end(end + 1);
      size_t exponent = end + 1;
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (is_digit(exponent)) end = digits_end(exponent);
      }
    }
    // Without a fraction or an exponent it is an integer, whose size Python does not bound: parse_int() does.
    if (end == integer_end) return integer();
    std::optional<double> value = parse_float(source_.substr(at_, end - at_));
    if (!value) fail_at(line_, "'{}' is no number", source_.substr(at_, end - at_));
    push(TokenKind::kFloat, std::string(source_.substr(at_, end - at_)));
    tokens_.back().real = *value;
    advance(end - at_);
    return true;
  }

  bool integer() {
    size_t end = at_;
    char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : ' ';
    // 0x, 0o and 0b, in either case. A prefix without a digit behind it is the number 0 and a name.
    int base = source_[at_] != '0' ? 10 : letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    auto is_base_digit = [&](size_t at) {
      if (at >= source_.size()) return false;
      char c = source_[at];
      int digit = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
      return digit < base;
    };
    if (base != 10) {
      end = at_ + 2;
      while (is_base_digit(end) || (end < source_.size() && source_[end] == '_' && is_base_digit(end + 1))) ++end;
    }
    if (base == 10 || end == at_ + 2) {
      // A leading zero stands for zero alone: "007" is three tokens, which no expression accepts.
      end = source_[at_] == '0' ? at_ + 1 : digits_end(at_);
      while (source_[at_] == '0' && (source_.substr(end, 1) == "0" || source_.substr(end, 2) == "_0")) ++end;
    }
    std::string_view text = source_.substr(at_, end - at_);
    std::optional<Int> value;
    try {
      value = parse_int(text, 0);
    } catch (TemplateError& error) {  // over the limit of digits: it knows no line
      error.line = line_;
      throw;
    }
    if (!value) fail_at(line_, "'{}' is no number", text);
    push(TokenKind::kInteger, std::string(text));
    tokens_.back().integer = *value;
    advance(end - at_);
    return true;
  }

  bool name() {
    size_t end = at_;
    if (!is_identifier_start(next_code_point(source_, end))) return false;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_identifier_part(next_code_point(source_, next))) break;
      end = next;
    }
    push(TokenKind::kName, std::string(source_.substr(at_, end - at_)));
    advance(end - at_);
    return true;
  }

  bool string() {
    char quote = source_[at_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    // A backslash takes the next byte with it, so an escaped quote does not end the string.
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at(line_, "a string opens here and never ends; wanted {}", quote);
    push(TokenKind::kString, resolve_escapes(source_.substr(at_ + 1, end - at_ - 1), line_));
    advance(end + 1 - at_);
    return true;
  }

  void operation(std::string& brackets) {
    for (std::string_view op : kOperators) {
      if (!starts(op)) continue;
      if (op == "{" || op == "(" || op == "[") brackets += op == "{" ? '}' : op == "(" ? ')' : ']';
      if (op == "}" || op == ")" || op == "]") {
        if (brackets.empty()) fail_at(line_, "unexpected '{}'", op);
        if (brackets.back() != op[0]) fail_at(line_, "unexpected '{}', wanted '{}'", op, brackets.back());
        brackets.pop_back();
      }
      push(TokenKind::kOperator, std::string(op));
      return advance(op.size());
    }
    size_t end = at_;
    next_code_point(source_, end);
    fail_at(line_, "unexpected character '{}'", source_.substr(at_, end - at_));
  }

  std::string owned_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalize_newlines(source)).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace millrace::jinja
