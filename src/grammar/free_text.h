// Free text that ends at the first of some patterns, as rules: any bytes, until one of the patterns has come complete;
// then what the caller puts behind it. The rules are the states of the automaton of Aho and Corasick ("Efficient string
// matching", 1975), so a text is read in one way only, and a free text is one or few states of the grammar's table.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

// What stands behind a pattern, by its number in `patterns`; `start`: the rule of the free text itself.
using BehindPattern = FunctionRef<ExprPtr(std::size_t pattern, int start)>;

enum class FreeTextEnd : uint8_t {
  kAnywhere,   // the text may end anywhere in the free text
  kAtPattern,  // one of the patterns comes
};

// Appends the rules, and returns the number of the one where the free text begins. Of two patterns that end at one
// byte, the longer one counts, and of two that begin at one, the shorter. `patterns`: none is empty.
int add_free_text(Rules& rules, const std::vector<std::string>& patterns, BehindPattern behind,
                  FreeTextEnd end = FreeTextEnd::kAnywhere);

// Appends the rules of another grammar, and returns the number of its first one.
int append_rules(Rules& rules, const Rules& others);

}  // namespace millrace::grammar
