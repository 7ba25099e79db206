// Calls: of functions, macros, loops and filters, with their arguments.
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/statements.h"

namespace millrace::jinja {

Arguments Evaluator::eval_arguments(const Expr& expr, size_t first_child) {
  Arguments arguments;
  for (size_t i = first_child; i < expr.children.size(); ++i) arguments.positional.push_back(eval(*expr.children[i]));
  if (!expr.more) return arguments;
  for (const auto& [name, value] : expr.more->named) arguments.named.emplace_back(name, eval(*value));
  if (expr.more->list) {
    for (Value& value : iterate(eval(*expr.more->list), state_.budget))
      arguments.positional.push_back(std::move(value));
  }
  if (expr.more->dict) {
    Value dict = eval(*expr.more->dict);
    require_defined(dict);
    if (!dict.is(Kind::kDict)) fail("the argument after ** is of type {}, wanted a dict", type_name(dict));
    for (const auto& [key, value] : dict.as<DictObject>().items()) {
      if (!key.is_string()) fail("a keyword is of type {}, wanted a string", type_name(key));
      arguments.named.emplace_back(key.as_text(), value);
    }
  }
  return arguments;
}

Value Evaluator::eval_call(const Expr& expr, const Value* caller) {
  Value callee = eval(*expr.children[0]);
  Arguments arguments = eval_arguments(expr, 1);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  state_.line = expr.line;
  return call(callee, arguments);
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  state_.budget.steps();
  switch (callee.kind()) {
    case Kind::kFunction:
      return callee.as<FunctionObject>().call(*this, arguments);
    case Kind::kMacro:
      return statements_.call_macro(callee.as<MacroObject>(), arguments);
    case Kind::kLoop: {
      Bound bound("loop", arguments, {"iterable"}, 1);
      return statements_.call_loop(callee.as<LoopObject>(), bound.get(0));
    }
    case Kind::kJoiner: {
      Bound bound("joiner", arguments, {});
      auto& joiner = callee.as<JoinerObject>();
      return std::exchange(joiner.used, true) ? joiner.separator : Value::string("", true);
    }
    default:
      require_defined(callee);
      fail("'{}' object is not callable", type_name(callee));
  }
}

Value Evaluator::eval_filter(const Expr& expr, const Value* input) {
  // Within a filter block the innermost filter of the chain has no target of its own.
  Value value;
  if (!expr.children[0]) {
    value = *input;
  } else if (input != nullptr && expr.children[0]->kind == ExprKind::kFilter) {
    value = eval_filter(*expr.children[0], input);
  } else {
    value = eval(*expr.children[0]);
  }
  Arguments arguments = eval_arguments(expr, 1);
  state_.line = expr.line;
  return apply_filter(*this, expr.name, value, arguments);
}

}  // namespace millrace::jinja
