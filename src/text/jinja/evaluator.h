// Evaluator: the values of a template's expressions, calls included.
//
// It has no state of its own but that of the render. Macros and recursive loops are callable values whose bodies are
// statements; for these it calls the StatementRunner that owns it.
//
// Owner: the StatementRunner of one render. Thread safety: one render, one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/format.h"
#include "text/jinja/render_state.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

class StatementRunner;

class Evaluator {
 public:
  // Both outlive the evaluator.
  Evaluator(RenderState& state, StatementRunner& statements) : state_(state), statements_(statements) {}

  // Each throws TemplateError; the state's line is then that of the error.
  Value eval(const Expr& expr);
  // A call with one more argument, the macro `caller`.
  Value eval_call(const Expr& expr, const Value* caller = nullptr);
  // A chain of filters whose innermost one has no value of its own: it gets `input`.
  Value eval_filter(const Expr& expr, const Value* input = nullptr);

  // --- For filters, tests, methods and globals ---
  RenderState& state() { return state_; }
  Budget& budget() { return state_.budget; }
  MarkedString str(const Value& value) { return to_str(value, state_.budget); }

 private:
  Value eval_node(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_items(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_slice(const Value& object, const Expr& slice);
  Value eval_concat(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Arguments eval_arguments(const Expr& expr, size_t first_child);
  Value call(const Value& callee, Arguments& arguments);

  RenderState& state_;
  StatementRunner& statements_;
};

}  // namespace millrace::jinja
