// The tests of `value is name`.
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

// Jinja's tests are functions of Python, and an argument too many is an error there too.
void no_arguments(const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty()) fail("this test takes no argument");
}

const Value& only_argument(std::string_view test, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    fail("the test '{}' wants one argument, {} were given", test, arguments.positional.size() + arguments.named.size());
  }
  return arguments.positional[0];
}

template <Kind... kinds>
bool is_kind(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return (value.is(kinds) || ...);
}

bool is_defined(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return !value.is_undefined();
}

// `is true` is identity: 1 is not true here.
bool is_true(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return value.is(Kind::kBool) && value.as_bool();
}
bool is_false(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return value.is(Kind::kBool) && !value.as_bool();
}

bool is_callable(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  switch (value.kind()) {
    case Kind::kUndefined:  // as in Python, where Undefined has a __call__ that fails
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kJoiner:
      return true;
    default:
      return false;
  }
}

// test_sequence() of Jinja tries len() and looks for __getitem__: dicts and strings have both, generators and views do
// not. Undefined has a __len__ and a __getitem__.
bool is_sequence(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange:
      return true;
    default:
      return false;
  }
}

// test_iterable(): whatever iter() takes. `loop` is its own iterator.
bool is_iterable(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return is_sequence(evaluator, value, arguments) || value.is(Kind::kView) || value.is(Kind::kGenerator) ||
         value.is(Kind::kLoop);
}

// By the operator of the template: for a string `%` is formatting, and fails as it does in Python.
bool remainder_is(Evaluator& evaluator, const Value& value, const Value& divisor, Int wanted) {
  Value rest = binary_operation("%", value, divisor, evaluator.budget());
  return equal(rest, Value::integer(wanted), evaluator.budget());
}
bool is_odd(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return remainder_is(evaluator, value, Value::integer(2), 1);
}
bool is_even(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return remainder_is(evaluator, value, Value::integer(2), 0);
}
bool is_divisible(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return remainder_is(evaluator, value, only_argument("divisibleby", arguments), 0);
}

// Python's `is`. Small numbers, None and strings are compared by value: which of them are one object is a matter of
// Python's implementation. 1 and 1.0, or 1 and True, are never the same.
bool is_same(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  const Value& other = only_argument("sameas", arguments);
  if (value.kind() != other.kind()) return false;
  if (value.is_none() || value.is_number() || value.is_string()) return equal(value, other, evaluator.budget());
  return value.pointer() == other.pointer();
}

bool is_equal(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return equal(value, only_argument("eq", arguments), evaluator.budget());
}
bool is_not_equal(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return !equal(value, only_argument("ne", arguments), evaluator.budget());
}
int compare_with_argument(Evaluator& evaluator, const Value& value, Arguments& arguments, std::string_view op) {
  return compare(value, only_argument(op, arguments), op, evaluator.budget());
}
bool is_less(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return compare_with_argument(evaluator, value, arguments, "<") == -1;
}
// Not "not greater": with a NaN neither holds.
bool is_less_or_equal(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  int result = compare_with_argument(evaluator, value, arguments, "<=");
  return result == -1 || result == 0;
}
bool is_greater(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return compare_with_argument(evaluator, value, arguments, ">") == 1;
}
bool is_greater_or_equal(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  int result = compare_with_argument(evaluator, value, arguments, ">=");
  return result == 1 || result == 0;
}
// contains() takes the container first.
bool is_in(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return contains(only_argument("in", arguments), value, evaluator.budget());
}

// str.islower() and isupper() of the value's text: at least one cased letter, none of the other case.
// A character in title case, such as U+01C5, is in neither case, and both are false.
bool all_cased(Evaluator& evaluator, const Value& value, bool upper) {
  MarkedString text = evaluator.str(value);
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    uint32_t c = next_code_point(text.text(), at);
    if (is_title(c) || (upper ? is_lower(c) : is_upper(c))) return false;
    any |= upper ? is_upper(c) : is_lower(c);
  }
  return any;
}
bool is_lower_text(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return all_cased(evaluator, value, false);
}
bool is_upper_text(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return all_cased(evaluator, value, true);
}

bool is_filter(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return value.is_string() && find_filter(value.as_text()) != nullptr;
}
bool is_test(Evaluator&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return value.is_string() && find_test(value.as_text()) != nullptr;
}
// Nothing is: there is no autoescape here, and Markup is not made.
bool is_escaped(Evaluator&, const Value&, Arguments& arguments) {
  no_arguments(arguments);
  return false;
}

// Jinja's names, the operators among them: select("==", x) and x is eq(y) go the same way.
struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<Kind::kUndefined>},
    {"none", is_kind<Kind::kNone>},
    {"boolean", is_kind<Kind::kBool>},
    {"true", is_true},
    {"false", is_false},
    {"integer", is_kind<Kind::kInt>},
    {"float", is_kind<Kind::kFloat>},
    {"number", is_kind<Kind::kBool, Kind::kInt, Kind::kFloat>},
    {"string", is_kind<Kind::kString>},
    {"mapping", is_kind<Kind::kDict>},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"sameas", is_same},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"==", is_equal},
    {"ne", is_not_equal},
    {"!=", is_not_equal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<", is_less},
    {"le", is_less_or_equal},
    {"<=", is_less_or_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"ge", is_greater_or_equal},
    {">=", is_greater_or_equal},
    {"in", is_in},
    {"lower", is_lower_text},
    {"upper", is_upper_text},
    {"filter", is_filter},
    {"test", is_test},
    {"escaped", is_escaped},
};

}  // namespace

Test find_test(std::string_view name) {
  const NamedTest* entry = find_named(kTests, name);
  return entry != nullptr ? entry->test : nullptr;
}

bool apply_test(Evaluator& evaluator, std::string_view name, const Value& value, Arguments& arguments) {
  Test test = find_test(name);
  if (test == nullptr) fail("no test named '{}'", name);
  // select() and reject() call this for each item.
  evaluator.budget().steps();
  return test(evaluator, value, arguments);
}

}  // namespace millrace::jinja
