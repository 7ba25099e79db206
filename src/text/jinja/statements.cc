#include "text/jinja/statements.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"

namespace millrace::jinja {
namespace {

// The macro as a value that keeps the current scope.
Value make_macro(const Macro& macro, ScopeChain& scopes) {
  auto object = std::make_shared<MacroObject>();
  object->macro = &macro;
  object->closure = scopes.capture();
  return Value::object(Kind::kMacro, std::move(object));
}

}  // namespace

MarkedString StatementRunner::run(const Block& body, const Variables& variables) {
  // The request's variables are the outermost scope; what the template sets hides them in the next one and does not
  // replace them. Their names live in `variables`, which outlives the render.
  for (const auto& [name, value] : variables) state_.scopes.set(name, value);
  ScopeChain::Open template_scope(state_.scopes);
  MarkedString out;
  Output::Capture capture(state_.output, out);
  run_block(body);
  return out;
}

// Break and continue travel up as return values to the loop that they belong to: the parser has refused those outside
// of one, and those that would have to leave a macro or a set block (detached_body), so none is lost in a body whose
// result is ignored below.
StatementRunner::Flow StatementRunner::run_block(const Block& block) {
  for (const auto& stmt : block) {
    Flow flow = run_statement(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

StatementRunner::Flow StatementRunner::run_statement(const Stmt& stmt) {
  // What recurses here is C++ too: this bounds the stack.
  Nesting nesting(state_);
  state_.budget.steps();
  state_.line = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      state_.output.append(stmt.constant.as_marked(), state_.budget);
      return Flow::kNormal;
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.expressions) print(evaluator_.eval(*expr));
      return Flow::kNormal;
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt, evaluator_.eval(*stmt.expressions[0]), 0);
    case StmtKind::kSet:
      assign(stmt.target, evaluator_.eval(*stmt.expressions[0]));
      return Flow::kNormal;
    case StmtKind::kSetBlock:
      run_set_block(stmt);
      return Flow::kNormal;
    case StmtKind::kMacro:
      define_macro(stmt);
      return Flow::kNormal;
    case StmtKind::kCall:
      run_call_block(stmt);
      return Flow::kNormal;
    case StmtKind::kFilter:
      return run_filter_block(stmt);
    case StmtKind::kWith:
      return run_with(stmt);
    case StmtKind::kScope: {
      ScopeChain::Open inner(state_.scopes);
      return run_block(stmt.blocks[0]);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void StatementRunner::print(const Value& value) {
  if (value.is_string()) {
    state_.output.append(value.as_marked(), state_.budget);
  } else {
    state_.output.append(to_str(value, state_.budget), state_.budget);
  }
}

// blocks[i] belongs to expressions[i]; one block more is that of else. An if opens no scope: what it sets stays set.
StatementRunner::Flow StatementRunner::run_if(const Stmt& stmt) {
  CHECK(stmt.blocks.size() >= stmt.expressions.size());
  for (size_t i = 0; i < stmt.expressions.size(); ++i) {
    if (truthy(evaluator_.eval(*stmt.expressions[i]))) return run_block(stmt.blocks[i]);
  }
  if (stmt.blocks.size() > stmt.expressions.size()) return run_block(stmt.blocks.back());
  return Flow::kNormal;
}

StatementRunner::Flow StatementRunner::run_for(const Stmt& stmt, const Value& iterable, int depth0) {
  CHECK(stmt.kind == StmtKind::kFor && stmt.expressions.size() == 2);
  auto loop = std::make_shared<LoopObject>();
  loop->stmt = &stmt;
  loop->outer = state_.scopes.current();
  loop->depth0 = depth0;
  // A copy: the body may use up a generator that it loops over, or call the loop again with it.
  loop->items = iterate(iterable, state_.budget);
  // `loop` is a value like any other and may be put into a list; its items count as nested in it.
  loop->depth = depth_over(loop->items);
  Value loop_value = Value::object(Kind::kLoop, loop);
  struct Forget {  // loop.changed(loop) would keep the loop alive by itself
    LoopObject& loop;
    ~Forget() { loop.changed.reset(); }
  } forget{*loop};
  bool any = false;
  // The loop's filter runs in here, in the scope around the loop: it does not see what an iteration has set.
  while (std::optional<Value> item = next_loop_item(evaluator_, *loop)) {
    any = true;
    // Counts the items whose turn has come, not those that `loop.last` and `loop.length` have taken ahead.
    ++loop->index0;
    loop->before = std::exchange(loop->current, *item);
    // A scope for each iteration: what the body sets is gone in the next one, which is why templates use namespace().
    ScopeChain::Open iteration(state_.scopes);
    state_.scopes.set("loop", loop_value);
    assign(stmt.target, *item);
    Flow flow = run_block(stmt.blocks[0]);
    // kContinue has ended the body, and has nothing more to do.
    if (flow == Flow::kBreak) break;
  }
  // Jinja's else: no iteration at all, also where the filter let none pass.
  if (!any && !stmt.blocks[1].empty()) {
    ScopeChain::Open inner(state_.scopes);
    return run_block(stmt.blocks[1]);
  }
  return Flow::kNormal;
}

Value StatementRunner::call_loop(const LoopObject& loop, const Value& iterable) {
  // loop(children) runs the same body again over other items, and its output is the value. It begins in the scope
  // around the loop, not in the iteration that calls it, as a function of its own would.
  if (!loop.stmt->flag) fail("the loop must have the 'recursive' marker to be called");
  Nesting nesting(state_);
  MarkedString out;
  {
    Output::Capture capture(state_.output, out);
    ScopeChain::Open inner(state_.scopes, loop.outer);
    run_for(*loop.stmt, iterable, loop.depth0 + 1);
  }
  return Value::string(std::move(out));
}

StatementRunner::Flow StatementRunner::run_with(const Stmt& stmt) {
  // All values are computed in the outer scope, then bound.
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.expressions) values.push_back(evaluator_.eval(*expr));
  ScopeChain::Open inner(state_.scopes);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
  return run_block(stmt.blocks[0]);
}

StatementRunner::Flow StatementRunner::run_filter_block(const Stmt& stmt) {
  MarkedString text;
  Flow flow = Flow::kNormal;
  {
    Output::Capture capture(state_.output, text);
    ScopeChain::Open inner(state_.scopes);
    flow = run_block(stmt.blocks[0]);
  }
  // As in Jinja, where a break or continue leaves the block before its filter runs: its text goes nowhere.
  if (flow != Flow::kNormal) return flow;
  Value input = Value::string(std::move(text));
  print(evaluator_.eval_filter(*stmt.expressions[0], &input));
  return Flow::kNormal;
}

void StatementRunner::run_set_block(const Stmt& stmt) {
  MarkedString text;
  {
    Output::Capture capture(state_.output, text);
    ScopeChain::Open inner(state_.scopes);
    run_block(stmt.blocks[0]);
  }
  Value value = Value::string(std::move(text));
  // {% set x | upper %}: null where there is no filter.
  if (stmt.expressions[0]) value = evaluator_.eval_filter(*stmt.expressions[0], &value);
  assign(stmt.target, value);
}

// --- Macros ---

void StatementRunner::define_macro(const Stmt& stmt) {
  Value macro = make_macro(*stmt.macro, state_.scopes);
  state_.budget.items(1);
  // Behind the capture, by reference: the macro finds itself and macros that are defined later.
  state_.scopes.set(stmt.macro->name, std::move(macro));
}

void StatementRunner::run_call_block(const Stmt& stmt) {
  // The body of a call block is a macro of the scope that it stands in, not of the macro that calls it.
  Value caller = make_macro(*stmt.macro, state_.scopes);
  print(evaluator_.eval_call(*stmt.expressions[0], &caller));
}

Value StatementRunner::call_macro(const MacroObject& object, Arguments& arguments) {
  Nesting nesting(state_);
  MarkedString out;
  {
    Output::Capture capture(state_.output, out);
    // Not the caller's scope: a macro sees what its definition saw.
    ScopeChain::Open inner(state_.scopes, object.closure);
    bind_macro(evaluator_, *object.macro, arguments);
    run_block(object.macro->body);
  }
  return Value::string(std::move(out));
}

}  // namespace millrace::jinja
