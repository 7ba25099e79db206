// Language: a regular set of byte strings as a complete deterministic automaton, for what expressions alone cannot
// write: the strings of two languages at once, and those of one that are not of another. A schema's pattern beside a
// length, or the keys that no pattern matches, are made this way.
//
// Owner: the compiler of a schema. Thread safety: a value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/expr.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxLanguageStates = 4'000;  // 1 KB each
// Positions of the nondeterministic automaton, by state and class of bytes: about a second of work.
inline constexpr std::size_t kMaxLanguageWork = 2'000'000;

class Language {
 public:
  // The texts of an expression without rules. kTooLarge: over kMaxLanguageStates.
  static Result<Language> of(const ExprPtr& expr);
  static Result<Language> both(const Language& a, const Language& b);
  static Result<Language> minus(const Language& a, const Language& b);

  bool accepts(std::string_view text) const;
  bool empty() const;
  // As an expression: a rule for each state, added to `rules` under `name`.
  ExprPtr to_expr(Rules& rules, const std::string& name) const;

 private:
  struct State {
    std::array<int32_t, 256> next{};
    bool accepts = false;
  };
  template <typename Accepts>
  static Result<Language> product(const Language& a, const Language& b, Accepts accepts);
  // By state: whether any text leads from it to one that accepts.
  std::vector<bool> alive() const;

  std::vector<State> states_;  // 0 is where a text begins
};

}  // namespace millrace::grammar
