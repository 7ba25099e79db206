// Statements and scopes. Expressions are in evaluator_expressions.cc.
#include "text/jinja/evaluator.h"

#include "text/jinja/builtins.h"
#include "text/jinja/evaluator_guards.h"
#include "text/jinja/loop.h"

namespace millrace::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const auto& [key, value] : variables) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::~Evaluator() {
  // The vectors keep every scope and namespace alive while they are emptied one by one: no destructor recurses.
  for (auto& scope : captured_) scope->variables.clear();
  for (auto& space : namespaces_) space->members.clear();
}

MarkedString Evaluator::run(const Block& body, const Variables& variables) {
  scope_ = std::make_shared<Scope>();
  for (const auto& [name, value] : variables) scope_->set(name, value);
  OpenScope template_scope(*this);
  MarkedString out;
  Capture capture(*this, out);
  run_block(body);
  return out;
}

Evaluator::Flow Evaluator::run_block(const Block& block) {
  for (const auto& stmt : block) {
    Flow flow = run_statement(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::run_statement(const Stmt& stmt) {
  Deeper deeper(*this);
  budget_.steps();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      append_output(stmt.constant.as_marked());
      return Flow::kNormal;
    case StmtKind::kOutput:
      for (const ExprPtr& expr : stmt.expressions) print(eval(*expr));
      return Flow::kNormal;
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt, eval(*stmt.expressions[0]), 0);
    case StmtKind::kSet:
      assign(stmt.target, eval(*stmt.expressions[0]));
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
      OpenScope inner(*this);
      return run_block(stmt.blocks[0]);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Evaluator::append_output(const MarkedString& text) {
  if (out_->size() + text.size() > limits_.max_output_bytes) {
    fail_limit("the output has more than {} bytes", limits_.max_output_bytes);
  }
  budget_.string(text.size());
  out_->append(text);
}

void Evaluator::print(const Value& value) {
  if (value.is_string()) {
    append_output(value.as_marked());
  } else {
    append_output(str(value));
  }
}

Evaluator::Flow Evaluator::run_if(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.expressions.size(); ++i) {
    if (truthy(eval(*stmt.expressions[i]))) return run_block(stmt.blocks[i]);
  }
  if (stmt.blocks.size() > stmt.expressions.size()) return run_block(stmt.blocks.back());
  return Flow::kNormal;
}

std::optional<Value> Evaluator::next_loop_item(LoopObject& loop) {
  if (loop.after) return std::exchange(loop.after, std::nullopt);
  const Expr* filter = loop.filtered ? nullptr : loop.stmt->expressions[1].get();
  while (loop.position < loop.items.size()) {
    budget_.steps();
    Value item = loop.items[loop.position++];
    if (filter == nullptr) return item;
    OpenScope inner(*this, loop.outer);
    assign(loop.stmt->target, item);
    if (truthy(eval(*filter))) return item;
  }
  return std::nullopt;
}

Evaluator::Flow Evaluator::run_for(const Stmt& stmt, const Value& iterable, int depth0) {
  auto loop = std::make_shared<LoopObject>();
  loop->stmt = &stmt;
  loop->outer = scope_;
  loop->depth0 = depth0;
  loop->items = iterate(iterable, budget_);
  loop->depth = depth_over(loop->items);
  Value loop_value = Value::object(Kind::kLoop, loop);
  struct Forget {  // loop.changed(loop) would keep the loop alive by itself
    LoopObject& loop;
    ~Forget() { loop.changed.reset(); }
  } forget{*loop};
  bool any = false;
  while (std::optional<Value> item = next_loop_item(*loop)) {
    any = true;
    ++loop->index0;
    loop->before = std::exchange(loop->current, *item);
    OpenScope iteration(*this);
    scope_->set("loop", loop_value);
    assign(stmt.target, *item);
    Flow flow = run_block(stmt.blocks[0]);
    if (flow == Flow::kBreak) break;
  }
  if (!any && !stmt.blocks[1].empty()) {
    OpenScope inner(*this);
    return run_block(stmt.blocks[1]);
  }
  return Flow::kNormal;
}

Value Evaluator::run_recursive_loop(const LoopObject& loop, const Value& iterable) {
  if (!loop.stmt->flag) fail("the loop must have the 'recursive' marker to be called");
  Deeper deeper(*this);
  MarkedString out;
  {
    Capture capture(*this, out);
    OpenScope inner(*this, loop.outer);
    run_for(*loop.stmt, iterable, loop.depth0 + 1);
  }
  return Value::string(std::move(out));
}

Evaluator::Flow Evaluator::run_with(const Stmt& stmt) {
  // All values are computed in the outer scope, then bound.
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.expressions) values.push_back(eval(*expr));
  OpenScope inner(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
  return run_block(stmt.blocks[0]);
}

Evaluator::Flow Evaluator::run_filter_block(const Stmt& stmt) {
  MarkedString text;
  Flow flow;
  {
    Capture capture(*this, text);
    OpenScope inner(*this);
    flow = run_block(stmt.blocks[0]);
  }
  Value input = Value::string(std::move(text));
  print(eval_filter(*stmt.expressions[0], &input));
  return flow;
}

void Evaluator::run_set_block(const Stmt& stmt) {
  MarkedString text;
  {
    Capture capture(*this, text);
    OpenScope inner(*this);
    run_block(stmt.blocks[0]);
  }
  Value value = Value::string(std::move(text));
  if (stmt.expressions[0]) value = eval_filter(*stmt.expressions[0], &value);
  assign(stmt.target, value);
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    std::vector<Value> items = iterate(value, budget_);
    if (items.size() != target.items.size()) {
      fail("{} values to unpack, wanted {}", items.size(), target.items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i]);
    return;
  }
  if (target.member.empty()) {
    scope_->set(target.name, value);
    return;
  }
  const Value* object = nullptr;
  for (const Scope* scope = scope_.get(); scope != nullptr && object == nullptr; scope = scope->parent.get()) {
    object = scope->find(target.name);
  }
  if (object == nullptr || !object->is(Kind::kNamespace)) {
    fail("cannot set '{}.{}': '{}' is {}, wanted a namespace", target.name, target.member, target.name,
         object == nullptr ? "undefined" : type_name(*object));
  }
  budget_.items(1);
  object->as<NamespaceObject>().set(target.member, value);
}

// --- Macros ---

void Evaluator::define_macro(const Stmt& stmt) {
  auto object = std::make_shared<MacroObject>();
  object->macro = stmt.macro.get();
  object->closure = scope_;
  if (!std::exchange(scope_->captured, true)) captured_.push_back(scope_);
  budget_.items(1);
  scope_->set(stmt.macro->name, Value::object(Kind::kMacro, std::move(object)));
}

void Evaluator::run_call_block(const Stmt& stmt) {
  auto object = std::make_shared<MacroObject>();
  object->macro = stmt.macro.get();
  object->closure = scope_;
  if (!std::exchange(scope_->captured, true)) captured_.push_back(scope_);
  Value caller = Value::object(Kind::kMacro, std::move(object));
  print(eval_call(*stmt.expressions[0], &caller));
}

Value Evaluator::call_macro(const MacroObject& object, Arguments& arguments) {
  Deeper deeper(*this);
  MarkedString out;
  {
    Capture capture(*this, out);
    OpenScope inner(*this, object.closure);
    bind_macro(*object.macro, arguments);
    run_block(object.macro->body);
  }
  return Value::string(std::move(out));
}

// Binds the arguments in the macro's scope, which is open. Defaults are computed there, after the parameters before
// them.
void Evaluator::bind_macro(const Macro& macro, Arguments& arguments) {
  auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (size_t i = 0; i < arguments.named.size(); ++i) {
      if (arguments.named[i].first != name) continue;
      Value value = std::move(arguments.named[i].second);
      arguments.named.erase(arguments.named.begin() + static_cast<std::ptrdiff_t>(i));
      return value;
    }
    return std::nullopt;
  };
  size_t count = macro.parameters.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    size_t first_default = count - macro.defaults.size();
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take_named(name);
    }
    if (!value && i >= first_default) value = eval(*macro.defaults[i - first_default]);
    if (!value) value = Value::undefined(fmt::format("parameter '{}' was not provided", name));
    scope_->set(name, *value);
  }
  if (macro.uses_caller) {
    scope_->set("caller", take_named("caller").value_or(Value::undefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [name, value] : arguments.named) dict->set(Value::string(name, true), value);
    scope_->set("kwargs", make_dict(std::move(dict)));
  } else if (!arguments.named.empty()) {
    fail("the macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
  }
  size_t extra = std::min(count, arguments.positional.size());
  if (macro.uses_varargs) {
    scope_->set("varargs", make_tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(extra),
                                       arguments.positional.end()}));
  } else if (arguments.positional.size() > count) {
    fail("the macro '{}' takes at most {} arguments, {} were given", macro.name, count, arguments.positional.size());
  }
}

Value Evaluator::make_namespace(const Arguments& arguments) {
  auto space = std::make_shared<NamespaceObject>();
  budget_.items(4);
  for (const Value& source : arguments.positional) {
    // As dict(): a mapping or pairs.
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as<DictObject>().items()) space->set(str(key).text(), value);
      continue;
    }
    for (const Value& pair : iterate(source, budget_)) {
      std::vector<Value> both = iterate(pair, budget_);
      if (both.size() != 2) fail("namespace(): an item of {} values, wanted 2", both.size());
      space->set(str(both[0]).text(), both[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) space->set(name, value);
  budget_.items(space->members.size());
  namespaces_.push_back(space);
  return Value::object(Kind::kNamespace, std::move(space));
}

}  // namespace millrace::jinja
