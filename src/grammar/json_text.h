// The parts of JSON's text (RFC 8259) as expressions: white space, strings, numbers, any value. What a JSON Schema's
// keywords become is put together of these.
//
// White space is bounded, so that a model cannot write it for ever: none, a space, or one or two line ends with up to
// 20 spaces or tabs behind them (the rule of llama.cpp's grammars).
//
// Owner: the parser that builds a grammar. Thread safety: none.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "grammar/expr.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

// Rules that every JSON grammar shares, made when they are first wanted.
class JsonText {
 public:
  explicit JsonText(Rules& rules) : rules_(rules) {}

  ExprPtr space();                      // white space, or none
  ExprPtr character();                  // of a string: one code point, escaped or not
  ExprPtr string();                     // of any length, with its quotes
  ExprPtr string(int least, int most);  // so many code points
  ExprPtr number();
  ExprPtr integer();
  ExprPtr value();   // any
  ExprPtr object();  // any
  ExprPtr array();   // any
  // A character of `set` as it stands in a string: escaped where it has to be.
  static ExprPtr written(const CharSet& set);
  // A key or a string with exactly this text, with its quotes.
  static ExprPtr quoted(std::string_view utf8_text);
  static ExprPtr unquoted(std::string_view utf8_text);
  // A number for the rule that `make` builds; the rule may refer to itself.
  int add_rule(std::string name);
  void set_rule(int number, ExprPtr body) {
    CHECK(number >= 0 && std::cmp_less(number, rules_.bodies.size()) && body != nullptr);
    rules_.bodies[static_cast<std::size_t>(number)] = std::move(body);
  }

 private:
  Rules& rules_;
  std::map<std::pair<int, int>, int> counted_strings_;  // by bounds: the rule
  int space_ = -1, character_ = -1, value_ = -1, object_ = -1, array_ = -1;
};

}  // namespace millrace::grammar
