// int, float, abs, round.
#include <cmath>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

constexpr Int kMaxPrecision = 400;  // digits before and behind the point that a double can have, and some more

// float(value) as the int and float filters use it; nullopt: Python raises TypeError or ValueError.
std::optional<double> as_float(const Value& value) {
  require_defined(value);
  if (value.is_number()) return value.as_float();
  if (value.is_string()) return parse_float(value.as_text());
  return std::nullopt;
}

Value int_filter(Evaluator&, const Value& value, Arguments& arguments) {
  Bound bound("int", arguments, {"default", "base"});
  Value fallback = bound.get_or(0, Value::integer(0));
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_string()) {
    Int base = bound.integer(1, 10);
    bool valid = base == 0 || (base >= 2 && base <= 36);
    std::optional<Int> parsed = valid ? parse_int(value.as_text(), static_cast<int>(base)) : std::nullopt;
    if (parsed) return Value::integer(*parsed);
  }
  std::optional<double> number = as_float(value);
  if (!number || std::isnan(*number)) return fallback;
  return Value::integer(float_to_int(*number));
}

Value float_filter(Evaluator&, const Value& value, Arguments& arguments) {
  Bound bound("float", arguments, {"default"});
  std::optional<double> number = as_float(value);
  return number ? Value::real(*number) : bound.get_or(0, Value::real(0.0));
}

Value abs_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("abs", arguments, {});
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.as_float()));
  if (!value.is_integral()) fail("bad operand type for abs(): '{}'", type_name(value));
  Value number = Value::integer(value.as_int());
  return value.as_int() < 0 ? binary_operation("-", Value::integer(0), number, evaluator.budget()) : number;
}

// Python's round(): to even on ties of the exact binary value, which printf does too.
double round_float(double value, Int precision) {
  if (!std::isfinite(value) || precision > kMaxPrecision) return value;
  if (precision < -kMaxPrecision) return std::copysign(0.0, value);
  if (precision >= 0) {
    char buffer[1024];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
    return std::strtod(buffer, nullptr);
  }
  double scale = std::pow(10.0, static_cast<double>(-precision));
  double scaled = value / scale, rounded = std::nearbyint(scaled);
  return rounded * scale;
}

// round(integer, negative): to a power of ten, ties to even.
Int round_int(Int value, Int precision) {
  if (precision >= 0) return value;
  if (precision < -38) return 0;
  Int scale = 1;
  for (Int i = precision; i < 0; ++i) scale *= 10;
  Int rest = value % scale;
  Int down = value - rest;
  Int twice = (rest < 0 ? -rest : rest);
  bool up = twice > scale - twice || (twice == scale - twice && (down / scale) % 2 != 0);
  return up ? down + (value < 0 ? -scale : scale) : down;
}

Value round_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("round", arguments, {"precision", "method"});
  std::string method = bound.text(1, "common").text();
  if (method != "common" && method != "ceil" && method != "floor") {
    fail("round: the method is '{}', wanted common, ceil or floor", method);
  }
  require_defined(value);
  if (!value.is_number()) fail("round: the value is of type {}, wanted a number", type_name(value));
  Int precision = bound.integer(0, 0);
  if (method == "common") {
    if (value.is_integral()) return Value::integer(round_int(value.as_int(), precision));
    return Value::real(round_float(value.as_float(), precision));
  }
  Value scale = binary_operation("**", Value::integer(10), Value::integer(precision), evaluator.budget());
  Value scaled = binary_operation("*", value, scale, evaluator.budget());
  double number = scaled.as_float();
  Int rounded =
      scaled.is_integral() ? scaled.as_int() : float_to_int(method == "ceil" ? std::ceil(number) : std::floor(number));
  return binary_operation("/", Value::integer(rounded), scale, evaluator.budget());
}

constexpr NamedFilter kNumberFilters[] = {
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"round", round_filter},
};

}  // namespace

Filter find_number_filter(std::string_view name) {
  const NamedFilter* entry = find_named(kNumberFilters, name);
  return entry != nullptr ? entry->filter : nullptr;
}

}  // namespace millrace::jinja
