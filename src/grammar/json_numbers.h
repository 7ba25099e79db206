// Numbers between bounds as expressions over their decimal digits, without exponents. Stateless.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/expr.h"

namespace millrace::grammar {

struct NumberBound {
  double value = 0;
  bool exclusive = false;
};

// The integers from `least` to `most`, both included; absent: no bound.
ExprPtr integers_between(std::optional<int64_t> least, std::optional<int64_t> most);

// The numbers between the bounds, in decimals. Without a bound, exponents are left out too.
ExprPtr numbers_between(std::optional<NumberBound> least, std::optional<NumberBound> most);

}  // namespace millrace::grammar
