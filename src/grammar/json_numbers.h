// Numbers between bounds, and multiples of a number, as expressions over their decimal digits, without exponents.
// Bounds are decimals of any length, never rounded here. Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/expr.h"
#include "grammar/language.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxBoundDigits = 40;        // before the point; a bound further away is moved to there
inline constexpr std::size_t kMaxMultipleStates = 3'000;  // remainders, by the digits behind the point

struct NumberBound {
  bool negative = false;
  std::string integer = "0";  // no leading zeros
  std::string fraction;       // no trailing zeros
  bool exclusive = false;

  // Of a JSON number's text, "-12.5e3".
  static NumberBound of(std::string_view text, bool exclusive);
  bool is_zero() const { return integer == "0" && fraction.empty(); }
};

// Of two bounds on the same side, the one that allows less; `lower`: they are lower bounds.
const NumberBound& narrower(const NumberBound& a, const NumberBound& b, bool lower);

// The integers between the bounds; absent: no bound.
ExprPtr integers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);

// The numbers between the bounds, in decimals. Without a bound, exponents are left out too.
ExprPtr numbers_between(const std::optional<NumberBound>& least, const std::optional<NumberBound>& most);

// The multiples of a step above 0. kTooLarge: over kMaxMultipleStates.
Result<Language> multiples_of(const NumberBound& step, bool integer);

}  // namespace millrace::grammar
