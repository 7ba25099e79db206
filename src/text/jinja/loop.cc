#include "text/jinja/loop.h"

#include "base/status.h"
#include "text/jinja/builtins.h"

namespace millrace::jinja {
namespace {

// How many items pass the filter; looks at all the rest once.
int64_t loop_size(Evaluator& evaluator, LoopObject& loop) {
  CHECK(loop.stmt != nullptr && loop.stmt->kind == StmtKind::kFor && loop.stmt->expressions.size() == 2);
  if (loop.size >= 0) return loop.size;
  if (loop.stmt->expressions[1] == nullptr) {
    loop.size = static_cast<int64_t>(loop.items.size());
    return loop.size;
  }
  std::vector<Value> rest;
  int64_t ahead = loop.after ? 1 : 0;
  std::optional<Value> kept = std::exchange(loop.after, std::nullopt);
  while (std::optional<Value> item = next_loop_item(evaluator, loop)) rest.push_back(*item);
  loop.size = loop.index0 + 1 + ahead + static_cast<int64_t>(rest.size());
  loop.filtered = true;
  loop.items = std::move(rest);
  loop.position = 0;
  loop.after = std::move(kept);
  return loop.size;
}

const std::optional<Value>& peek(Evaluator& evaluator, LoopObject& loop) {
  if (!loop.after) loop.after = next_loop_item(evaluator, loop);
  return loop.after;
}

Value cycle(Evaluator&, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  auto index = static_cast<size_t>(self.as<LoopObject>().index0);
  return arguments.positional[index % arguments.positional.size()];
}

Value changed(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  auto& loop = self.as<LoopObject>();
  bool same = loop.changed && loop.changed->size() == arguments.positional.size();
  for (size_t i = 0; same && i < arguments.positional.size(); ++i) {
    same = equal((*loop.changed)[i], arguments.positional[i], evaluator.budget());
  }
  if (same) return Value::boolean(false);
  loop.depth = std::max(loop.depth, depth_over(arguments.positional));
  loop.changed = arguments.positional;
  return Value::boolean(true);
}

Value bind(const Value& self, std::string_view name, Method method) {
  return make_function(
      std::string(name),
      [method, self](Evaluator& evaluator, Arguments& arguments) { return method(evaluator, self, arguments); }, self);
}

}  // namespace

std::optional<Value> next_loop_item(Evaluator& evaluator, LoopObject& loop) {
  CHECK(loop.position <= loop.items.size());
  if (loop.after) return std::exchange(loop.after, std::nullopt);
  const Expr* filter = loop.filtered ? nullptr : loop.stmt->expressions[1].get();
  while (loop.position < loop.items.size()) {
    evaluator.budget().steps();
    Value item = loop.items[loop.position++];
    if (filter == nullptr) return item;
    ScopeChain::Open inner(evaluator.state().scopes, loop.outer);
    evaluator.state().scopes.assign(loop.stmt->target, item, evaluator.budget());
    if (truthy(evaluator.eval(*filter))) return item;
  }
  return std::nullopt;
}

std::optional<Value> loop_attribute(Evaluator& evaluator, const Value& value, std::string_view name) {
  auto& loop = value.as<LoopObject>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!peek(evaluator, loop));
  if (name == "length") return Value::integer(loop_size(evaluator, loop));
  if (name == "revindex") return Value::integer(loop_size(evaluator, loop) - loop.index0);
  if (name == "revindex0") return Value::integer(loop_size(evaluator, loop) - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") {
    return loop.before ? *loop.before : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    const auto& next = peek(evaluator, loop);
    return next ? *next : Value::undefined("there is no next item");
  }
  if (name == "cycle") return bind(value, name, cycle);
  if (name == "changed") return bind(value, name, changed);
  return std::nullopt;
}

}  // namespace millrace::jinja
