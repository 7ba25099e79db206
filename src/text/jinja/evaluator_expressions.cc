// Expressions, calls, filters and tests.
#include "text/jinja/builtins.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/evaluator_guards.h"
#include "text/jinja/loop.h"
#include "text/jinja/slice.h"

namespace millrace::jinja {

Value Evaluator::eval(const Expr& expr) {
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  Deeper deeper(*this);
  budget_.steps();
  line_ = expr.line;
  return eval_node(expr);
}

Value Evaluator::eval_node(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_items(expr);
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute:
      return attribute(eval(*expr.children[0]), expr.name);
    case ExprKind::kItem:
      return eval_item(expr);
    case ExprKind::kSlice:
      fail("a slice stands outside an index");
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr);
    case ExprKind::kTest: {
      Value value = eval(*expr.children[0]);
      Arguments arguments = eval_arguments(expr, 1);
      line_ = expr.line;
      return Value::boolean(apply_test(expr.name, value, arguments));
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return eval_sign(expr);
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(*expr.children[0])));
    case ExprKind::kAnd: {
      Value left = eval(*expr.children[0]);
      return truthy(left) ? eval(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.children[0]);
      return truthy(left) ? left : eval(*expr.children[1]);
    }
    case ExprKind::kBinary: {
      Value left = eval(*expr.children[0]);
      Value right = eval(*expr.children[1]);
      line_ = expr.line;
      return binary(expr.name, left, right);
    }
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kIf:
      if (truthy(eval(*expr.children[0]))) return eval(*expr.children[1]);
      if (expr.children[2]) return eval(*expr.children[2]);
      return Value::undefined("the inline if evaluated to false and has no else");
  }
  return Value();
}

Value Evaluator::eval_name(const Expr& expr) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* value = scope->find(expr.name)) return *value;
  }
  if (const Value* value = find_global(expr.name)) return *value;
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Evaluator::eval_items(const Expr& expr) {
  budget_.items(expr.children.size());
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) items.push_back(eval(*child));
  return make_sequence(expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple, std::move(items));
}

Value Evaluator::eval_dict(const Expr& expr) {
  budget_.items(expr.children.size());
  auto dict = std::make_shared<DictObject>();
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i]);
    dict->set(key, eval(*expr.children[i + 1]));
  }
  return make_dict(std::move(dict));
}

Value Evaluator::eval_item(const Expr& expr) {
  Value object = eval(*expr.children[0]);
  const Expr& index = *expr.children[1];
  if (index.kind == ExprKind::kSlice) return slice(object, index);
  Value key = eval(index);
  line_ = expr.line;
  return item(object, key);
}

Value Evaluator::slice(const Value& object, const Expr& slice) {
  SliceBounds bounds;
  std::optional<Int>* parts[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (size_t i = 0; i < 3; ++i) {
    if (!slice.children[i]) continue;
    Value value = eval(*slice.children[i]);
    if (value.is_none()) continue;
    require_defined(value);
    if (!value.is_integral()) fail("a slice index is of type {}, wanted an integer or none", type_name(value));
    *parts[i] = value.as_int();
  }
  return slice_value(object, bounds, budget_);
}

Arguments Evaluator::eval_arguments(const Expr& expr, size_t first_child) {
  Arguments arguments;
  for (size_t i = first_child; i < expr.children.size(); ++i) arguments.positional.push_back(eval(*expr.children[i]));
  if (!expr.more) return arguments;
  for (const auto& [name, value] : expr.more->named) arguments.named.emplace_back(name, eval(*value));
  if (expr.more->list) {
    for (Value& value : iterate(eval(*expr.more->list), budget_)) arguments.positional.push_back(std::move(value));
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
  line_ = expr.line;
  return call(callee, arguments);
}

Value Evaluator::call(const Value& callee, Arguments& arguments) {
  budget_.steps();
  switch (callee.kind()) {
    case Kind::kFunction:
      return callee.as<FunctionObject>().call(*this, arguments);
    case Kind::kMacro:
      return call_macro(callee.as<MacroObject>(), arguments);
    case Kind::kLoop: {
      Bound bound("loop", arguments, {"iterable"}, 1);
      return run_recursive_loop(callee.as<LoopObject>(), bound.get(0));
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
  line_ = expr.line;
  return apply_filter(expr.name, value, arguments);
}

Value Evaluator::apply_filter(std::string_view name, const Value& value, Arguments& arguments) {
  Filter filter = find_filter(name);
  if (filter == nullptr) fail("no filter named '{}'", name);
  budget_.steps();
  return filter(*this, value, arguments);
}

bool Evaluator::apply_test(std::string_view name, const Value& value, Arguments& arguments) {
  Test test = find_test(name);
  if (test == nullptr) fail("no test named '{}'", name);
  budget_.steps();
  return test(*this, value, arguments);
}

Value Evaluator::eval_sign(const Expr& expr) {
  Value value = eval(*expr.children[0]);
  require_defined(value);
  bool negate = expr.kind == ExprKind::kNegate;
  if (value.is(Kind::kFloat)) return Value::real(negate ? -value.as_float() : value.as_float());
  if (!value.is_integral()) fail("bad operand type for unary {}: '{}'", negate ? '-' : '+', type_name(value));
  return negate ? binary("-", Value::integer(0), value) : Value::integer(value.as_int());
}

Value Evaluator::eval_concat(const Expr& expr) {
  MarkedString out;
  for (const ExprPtr& child : expr.children) {
    MarkedString piece = str(eval(*child));
    budget_.string(out.size() + piece.size());
    out.append(piece);
  }
  return Value::string(std::move(out));
}

Value Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    if (!compare_once(expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

bool Evaluator::compare_once(std::string_view op, const Value& left, const Value& right) {
  if (op == "==") return equal(left, right, budget_);
  if (op == "!=") return !equal(left, right, budget_);
  if (op == "in") return contains(right, left, budget_);
  if (op == "not in") return !contains(right, left, budget_);
  int order = compare(left, right, op, budget_);
  if (op == "<") return order == -1;
  if (op == "<=") return order == -1 || order == 0;
  if (op == ">") return order == 1;
  return order == 1 || order == 0;
}

}  // namespace millrace::jinja
