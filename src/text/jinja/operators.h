// The operators of expressions, as Python's: + - * / // % **, the signs, comparisons.
//
// Thread safety: free functions without state; each charges the budget for what it makes.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace millrace::jinja {

// left op right. Fails for types that the operator does not take, and where integers overflow.
Value binary_operation(std::string_view op, const Value& left, const Value& right, Budget& budget);

// - value or + value.
Value signed_value(bool negate, const Value& value, Budget& budget);

// left op right for == != < <= > >= in, and "not in".
bool compare_operation(std::string_view op, const Value& left, const Value& right, Budget& budget);

}  // namespace millrace::jinja
