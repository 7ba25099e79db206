#include "grammar/json_text.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace millrace::grammar {
namespace {

CharSet must_escape() {
  CharSet set(0, 0x1F);
  set.add(CharSet::of("\"\\"));
  return set;
}

ExprPtr hex_digits(int count) {
  CharSet digits('0', '9');
  digits.add('a', 'f');
  digits.add('A', 'F');
  return repeat(chars(digits), count, count);
}

// \uHHHH of a character, or of the two halves of one beyond U+FFFF: never half a pair.
ExprPtr unicode_escape() {
  const auto among = [](std::string_view letters) { return chars(CharSet::of(letters)); };
  const ExprPtr single =
      alt({seq({among("0123456789abcefABCEF"), hex_digits(3)}), seq({among("dD"), among("01234567"), hex_digits(2)})});
  const ExprPtr pair =
      seq({among("dD"), among("89abAB"), hex_digits(2), text("\\u"), among("dD"), among("cdefCDEF"), hex_digits(2)});
  return seq({text("u"), alt({single, pair})});
}

}  // namespace

int JsonText::add_rule(std::string name) {
  rules_.bodies.push_back(never());
  rules_.names.push_back(std::move(name));
  return static_cast<int>(rules_.bodies.size() - 1);
}

ExprPtr JsonText::space() {
  if (space_ < 0) {
    space_ = add_rule("space");
    set_rule(space_,
             alt({empty(), text(" "), seq({repeat(text("\n"), 1, 2), repeat(chars(CharSet::of(" \t")), 0, 20)})}));
  }
  return rule(space_);
}

ExprPtr JsonText::character() {
  if (character_ < 0) {
    character_ = add_rule("character");
    set_rule(character_, alt({chars(must_escape().complement()),
                              seq({text("\\"), alt({chars(CharSet::of("\"\\/bfnrt")), unicode_escape()})})}));
  }
  return rule(character_);
}

ExprPtr JsonText::string() { return string(0, kUnbounded); }

ExprPtr JsonText::string(int least, int most) {
  if (least == 0 && most == kUnbounded) return seq({text("\""), repeat(character(), 0, kUnbounded), text("\"")});
  const auto [known, added] = counted_strings_.try_emplace({least, most}, 0);
  if (added) {
    known->second = add_rule("string");
    set_rule(known->second, seq({text("\""), repeat(seq({tick(), character()}), 0, kUnbounded), text("\"")}));
    rules_.counts[known->second] = {least, most};
  }
  return rule(known->second);
}

ExprPtr JsonText::integer() {
  const ExprPtr digit = chars({'0', '9'});
  return seq({optional(text("-")), alt({text("0"), seq({chars({'1', '9'}), repeat(digit, 0, kUnbounded)})})});
}

ExprPtr JsonText::number() {
  const ExprPtr digits = repeat(chars({'0', '9'}), 1, kUnbounded);
  return seq({integer(), optional(seq({text("."), digits})),
              optional(seq({chars(CharSet::of("eE")), optional(chars(CharSet::of("+-"))), digits}))});
}

ExprPtr JsonText::value() {
  if (value_ < 0) {
    value_ = add_rule("value");
    set_rule(value_, alt({object(), array(), string(), number(), text("true"), text("false"), text("null")}));
  }
  return rule(value_);
}

ExprPtr JsonText::object() {
  if (object_ < 0) {
    object_ = add_rule("object");
    const ExprPtr member = seq({string(), space(), text(":"), space(), value(), space()});
    set_rule(object_,
             seq({text("{"), space(), optional(seq({member, repeat(seq({text(","), space(), member}), 0, kUnbounded)})),
                  text("}")}));
  }
  return rule(object_);
}

ExprPtr JsonText::array() {
  if (array_ < 0) {
    array_ = add_rule("array");
    const ExprPtr item = seq({value(), space()});
    set_rule(array_, seq({text("["), space(),
                          optional(seq({item, repeat(seq({text(","), space(), item}), 0, kUnbounded)})), text("]")}));
  }
  return rule(array_);
}

ExprPtr JsonText::written(const CharSet& set) {
  std::vector<ExprPtr> parts{chars(set.minus(must_escape()))};
  const CharSet escaped = set.intersect(must_escape());
  constexpr std::string_view kNamed = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  for (const CharSet::Range& range : escaped.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      const std::size_t named = kNamed.find(static_cast<char>(c));
      parts.push_back(text(named != kNamed.npos ? std::string("\\") + kLetters[named] : fmt::format("\\u{:04x}", c)));
    }
  }
  return alt(std::move(parts));
}

ExprPtr JsonText::quoted(std::string_view utf8_text) { return seq({text("\""), unquoted(utf8_text), text("\"")}); }

ExprPtr JsonText::unquoted(std::string_view utf8_text) {
  std::vector<ExprPtr> parts;
  for (std::size_t at = 0; at < utf8_text.size();) {
    const int64_t c = utf8_next(utf8_text, at);
    if (c < 0) return never();
    parts.push_back(written({static_cast<uint32_t>(c), static_cast<uint32_t>(c)}));
  }
  return seq(std::move(parts));
}

}  // namespace millrace::grammar
