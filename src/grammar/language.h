// Language: a regular set of byte strings as a complete deterministic automaton, for what expressions alone cannot
// write: the strings of two languages at once, and those of one that are not of another. A schema's pattern beside a
// length, or the keys that no pattern matches, are made this way.
//
// Owner: the compiler of a schema. Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "grammar/expr.h"
#include "grammar/grammar.h"
#include "grammar/schema_work.h"
#include "grammar/state_table.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxLanguageStates = 10'000;  // of some 100 bytes each
// Positions of the nondeterministic automaton, by state and class of bytes. All of a schema: schema_work.h.
inline constexpr std::size_t kMaxLanguageWork = 2'000'000;

class Language {
 public:
  // The texts of an expression without rules. kTooLarge: over kMaxLanguageStates.
  static Result<Language> of(const ExprPtr& expr, SchemaWork& work);
  // Of the texts of a grammar that begin with `before` and end with `after`, which stands nowhere else in them, what is
  // between. kTooLarge, too, where they are no regular set.
  static Result<Language> between(const std::shared_ptr<const Grammar>& grammar, std::string_view before, char after,
                                  SchemaWork& work);
  // With `count` states, 0 the first.
  static Language of_automaton(std::size_t count, FunctionRef<std::size_t(std::size_t, uint8_t)> next,
                               FunctionRef<bool(std::size_t)> accepts);
  static Result<Language> both(const Language& a, const Language& b, SchemaWork& work);
  static Result<Language> minus(const Language& a, const Language& b, SchemaWork& work);

  bool accepts(std::string_view text) const;
  bool empty() const;
  // As an expression: a rule for each state, added to `rules` under `name`.
  ExprPtr to_expr(Rules& rules, const std::string& name) const;

 private:
  // The bytes up to `last`, behind those of the run before, lead to `next`.
  struct Run {
    uint8_t last = 255;
    int32_t next = 0;
  };
  struct State {
    std::vector<Run> runs;  // the last one ends with byte 255
    bool accepts = false;

    int32_t next(uint8_t byte) const;
    void add(uint8_t last, int32_t next);
  };
  static Result<Language> determinized(const Grammar& grammar, StateTable& table, int32_t start,
                                       std::optional<uint8_t> after, SchemaWork& work);
  template <typename Accepts>
  static Result<Language> product(const Language& a, const Language& b, SchemaWork& work, Accepts accepts);
  // By state: whether any text leads from it to one that accepts.
  std::vector<bool> alive() const;

  std::vector<State> states_;  // 0 is where a text begins
};

}  // namespace millrace::grammar
