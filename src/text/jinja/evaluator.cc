// The nodes of an expression. Calls are in evaluator_calls.cc.
#include "text/jinja/evaluator.h"

#include <optional>
#include <utility>
#include <vector>

#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/slice.h"

namespace millrace::jinja {

Value Evaluator::eval(const Expr& expr) {
  // Most leaves of a tree: they cannot fail, so they need no line, no budget and no level.
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  Nesting nesting(state_);
  state_.budget.steps();
  // For the message of an error. Children set it to their own lines, so whatever computes after its children sets it
  // anew.
  state_.line = expr.line;
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
      return get_attribute(*this, eval(*expr.children[0]), expr.name);
    case ExprKind::kItem:
      return eval_item(expr);
    // The parser accepts a slice as an index only, and eval_item() takes it from there.
    case ExprKind::kSlice:
      fail("a slice stands outside an index");
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr);
    // The value comes before the arguments, as in Jinja: either may have an effect, such as taking an item of a
    // generator.
    case ExprKind::kTest: {
      Value value = eval(*expr.children[0]);
      Arguments arguments = eval_arguments(expr, 1);
      state_.line = expr.line;
      return Value::boolean(apply_test(*this, expr.name, value, arguments));
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return signed_value(expr.kind == ExprKind::kNegate, eval(*expr.children[0]), state_.budget);
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(*expr.children[0])));
    // As in Python, the result is an operand, not a boolean, and the right one is computed only where it decides.
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
      state_.line = expr.line;
      return binary_operation(expr.name, left, right, state_.budget);
    }
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kCompare:
      return eval_compare(expr);
    // children: the condition, the value, and what is behind `else`, which may be null.
    case ExprKind::kIf:
      if (truthy(eval(*expr.children[0]))) return eval(*expr.children[1]);
      if (expr.children[2]) return eval(*expr.children[2]);
      return Value::undefined("the inline if evaluated to false and has no else");
  }
  return Value();
}

// Undefined names are values: only some uses of one fail. So `{% if tools %}` works without the variable.
Value Evaluator::eval_name(const Expr& expr) {
  if (const Value* value = state_.scopes.find(expr.name)) return *value;
  if (const Value* value = find_global(expr.name)) return *value;
  return Value::undefined(fmt::format("'{}' is undefined", expr.name));
}

Value Evaluator::eval_items(const Expr& expr) {
  // Charged before the list is allocated.
  state_.budget.items(expr.children.size());
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) items.push_back(eval(*child));
  return make_sequence(expr.kind == ExprKind::kList ? Kind::kList : Kind::kTuple, std::move(items));
}

Value Evaluator::eval_dict(const Expr& expr) {
  state_.budget.items(expr.children.size());
  auto dict = std::make_shared<DictObject>();
  // Keys and values take turns. Each key is computed before its value; of equal keys the first one's position and the
  // last one's value stay, as in Python.
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i]);
    dict->set(key, eval(*expr.children[i + 1]));
  }
  return make_dict(std::move(dict));
}

Value Evaluator::eval_item(const Expr& expr) {
  Value object = eval(*expr.children[0]);
  const Expr& index = *expr.children[1];
  if (index.kind == ExprKind::kSlice) return eval_slice(object, index);
  Value key = eval(index);
  state_.line = expr.line;
  return get_item(*this, object, key);
}

// children: start, stop and step; null where it is left out, which is the same as None.
Value Evaluator::eval_slice(const Value& object, const Expr& slice) {
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
  return slice_value(object, bounds, state_.budget);
}

Value Evaluator::eval_concat(const Expr& expr) {
  // `~` makes a string of each operand, so it never fails for a type; the marks of the operands stay.
  MarkedString out;
  for (const ExprPtr& child : expr.children) {
    MarkedString part = str(eval(*child));
    state_.budget.string(out.size() + part.size());
    out.append(part);
  }
  return Value::string(std::move(out));
}

// `a < b < c`: each operand is computed once, and none behind the first comparison that is false.
Value Evaluator::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    if (!compare_operation(expr.ops[i], left, right, state_.budget)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

}  // namespace millrace::jinja
