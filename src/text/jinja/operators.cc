#include "text/jinja/operators.h"

#include <cmath>

#include "text/jinja/percent_format.h"

namespace millrace::jinja {
namespace {

[[noreturn]] void overflow(std::string_view op) {
  fail_limit("the result of {} does not fit an integer of 128 bits", op);
}

// Python rounds down, C++ towards 0. `b` is neither 0 nor -1 here (integer_operation).
Int floor_div(Int a, Int b) {
  Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// With the divisor's sign. Not a - floor_div(a, b) * b: the product may not fit where the remainder does.
Int floor_mod(Int a, Int b) {
  Int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  // Beyond 128 only the bases -1, 0 and 1 have results that fit.
  if (exponent > 128 && base != 0 && base != 1 && base != -1) overflow("**");
  // 0 and 1 are their own powers, and for -1 only the parity counts.
  if (exponent > 128) exponent = 128 + exponent % 2;
  // At most 129 rounds, so no budget is charged: a larger exponent was reduced, or refused, above.
  for (Int i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow("**");
  }
  return Value::integer(result);
}

Value integer_operation(std::string_view op, Int a, Int b) {
  Int out = 0;
  if ((op == "/" || op == "//" || op == "%") && b == 0) fail("division by zero");
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &out)) overflow(op);
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &out)) overflow(op);
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &out)) overflow(op);
    // True division, a float also where it is exact: 4 / 2 is 2.0.
  } else if (op == "/") {
    return Value::real(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "**") {
    return power(a, b);
  } else {
    if (b == -1) {  // the smallest integer divided by -1 overflows
      if (op == "//" && __builtin_sub_overflow(Int{0}, a, &out)) overflow(op);
      return Value::integer(out);
    }
    out = op == "//" ? floor_div(a, b) : floor_mod(a, b);
  }
  return Value::integer(out);
}

// Python's float % and //: the remainder has the divisor's sign.
double float_mod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// float_divmod() of CPython's floatobject.c: the quotient is computed from the remainder, since floor(a / b) would be
// off by one where a / b rounds up to an integer.
double float_floor_div(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value float_operation(std::string_view op, double a, double b) {
  if ((op == "/" || op == "//" || op == "%") && b == 0) fail("float division by zero");
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "/") return Value::real(a / b);
  if (op == "//") return Value::real(float_floor_div(a, b));
  if (op == "%") return Value::real(float_mod(a, b));
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) fail("a power of {} is a complex number", a);
  // Infinity from finite operands is Python's OverflowError.
  double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    fail("the result of ** is beyond the range of floats");
  return Value::real(result);
}

// Limits come before the work, and the comparison by division cannot overflow where the product would.
Value repeat(const Value& sequence, Int count, Budget& budget) {
  uint64_t times = count <= 0 ? 0 : count > INT64_MAX ? INT64_MAX : static_cast<uint64_t>(count);
  if (sequence.is_string()) {
    const MarkedString& text = sequence.as_marked();
    budget.repeated_string(text.size(), times);
    MarkedString out;
    // An empty string would pass the limit with any count, and the loop would not end.
    for (uint64_t i = 0; i < times && !text.empty(); ++i) out.append(text);
    return Value::string(std::move(out));
  }
  const auto& items = sequence.as<SequenceObject>().items;
  if (!items.empty() && times > budget.limits().max_list_items / items.size()) {
    fail_limit("a list of {} x {} items; the limit is {}", times, items.size(), budget.limits().max_list_items);
  }
  std::vector<Value> out;
  budget.items(items.size() * times);
  for (uint64_t i = 0; i < times && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return make_sequence(sequence.kind(), std::move(out));
}

bool is_repeatable(const Value& value) { return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple); }

Value concatenate(const Value& left, const Value& right, Budget& budget) {
  if (left.is_string()) {
    budget.string(left.as_text().size() + right.as_text().size());
    MarkedString out = left.as_marked();
    out.append(right.as_marked());
    return Value::string(std::move(out));
  }
  // Both are lists or both are tuples: binary_operation() has compared the kinds.
  const auto& more = right.as<SequenceObject>().items;
  std::vector<Value> items = left.as<SequenceObject>().items;
  budget.items(items.size() + more.size());
  items.insert(items.end(), more.begin(), more.end());
  return make_sequence(left.kind(), std::move(items));
}

}  // namespace

Value binary_operation(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  // First, since formatting takes any value on the right: an undefined one prints as nothing.
  if (op == "%" && left.is_string()) {
    return Value::string(percent_format(left.as_marked(), right, budget));
  }
  require_defined(left);
  require_defined(right);
  // bool is an int in Python: True + 1 is 2.
  if (left.is_integral() && right.is_integral()) return integer_operation(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return float_operation(op, left.as_float(), right.as_float());
  if (op == "+" && left.kind() == right.kind() && is_repeatable(left)) return concatenate(left, right, budget);
  if (op == "*" && is_repeatable(left) && right.is_integral()) return repeat(left, right.as_int(), budget);
  if (op == "*" && left.is_integral() && is_repeatable(right)) return repeat(right, left.as_int(), budget);
  if (op == "+" && left.is_string()) fail("can only concatenate str (not \"{}\") to str", type_name(right));
  fail("unsupported operand types for {}: '{}' and '{}'", op, type_name(left), type_name(right));
}

Value signed_value(bool negate, const Value& value, Budget& budget) {
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value::real(negate ? -value.as_float() : value.as_float());
  if (!value.is_integral()) fail("bad operand type for unary {}: '{}'", negate ? '-' : '+', type_name(value));
  return negate ? binary_operation("-", Value::integer(0), value, budget) : Value::integer(value.as_int());
}

bool compare_operation(std::string_view op, const Value& left, const Value& right, Budget& budget) {
  if (op == "==") return equal(left, right, budget);
  if (op == "!=") return !equal(left, right, budget);
  if (op == "in") return contains(right, left, budget);
  if (op == "not in") return !contains(right, left, budget);
  // 2 where a NaN is involved: then none of the four holds.
  int result = compare(left, right, op, budget);
  if (op == "<") return result == -1;
  if (op == "<=") return result == -1 || result == 0;
  if (op == ">") return result == 1;
  return result == 1 || result == 0;
}

}  // namespace millrace::jinja
