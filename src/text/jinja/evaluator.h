// One render of one template: scopes, statements, expressions, and the services that filters and methods need.
//
// Scoping is Jinja's: loops (each iteration), macros, call, set and filter blocks open a scope; if does not. A macro
// sees the scope it was defined in, by reference.
//
// Ownership: an Evaluator lives for one render on one thread. It owns every namespace and every scope that a macro
// captured, and empties them when it goes, for they can refer to each other in circles.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
#include "text/jinja/format.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>>
      variables;  // names live in the tree or in the variables of the render
  bool captured = false;

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct LoopObject;

struct MacroObject : Object {
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> closure;
};

class Evaluator {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  Evaluator(const Limits& limits, int64_t now_unix_s) : limits_(limits), budget_(limits_), now_unix_s_(now_unix_s) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // Renders. Throws TemplateError; line() then tells where. `variables` must outlive the evaluator.
  MarkedString run(const Block& body, const Variables& variables);
  int line() const { return line_; }

  // --- For filters, tests, methods and globals ---
  Budget& budget() { return budget_; }
  int64_t now_unix_s() const { return now_unix_s_; }
  MarkedString str(const Value& value) { return to_str(value, budget_); }
  // `object.name` and `object[key]` with Jinja's fallbacks: undefined where there is no such thing.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, Arguments& arguments);
  Value apply_filter(std::string_view name, const Value& value, Arguments& arguments);
  bool apply_test(std::string_view name, const Value& value, Arguments& arguments);
  Value binary(std::string_view op, const Value& left, const Value& right);
  Value make_namespace(const Arguments& arguments);
  Value run_recursive_loop(const LoopObject& loop, const Value& iterable);
  // The next item that passes the loop's filter; nullopt at the end.
  std::optional<Value> next_loop_item(LoopObject& loop);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  class Deeper;
  class Capture;
  class OpenScope;

  Flow run_block(const Block& block);
  Flow run_statement(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& iterable, int depth0);
  Flow run_with(const Stmt& stmt);
  Flow run_filter_block(const Stmt& stmt);
  void run_set_block(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  Value call_macro(const MacroObject& object, Arguments& arguments);
  void bind_macro(const Macro& macro, Arguments& arguments);
  void print(const Value& value);
  void append_output(const MarkedString& text);
  void assign(const Target& target, const Value& value);

  Value eval(const Expr& expr);
  Value eval_node(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_items(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller = nullptr);
  Value eval_filter(const Expr& expr, const Value* input = nullptr);
  Value eval_sign(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_compare(const Expr& expr);
  bool compare_once(std::string_view op, const Value& left, const Value& right);
  Arguments eval_arguments(const Expr& expr, size_t first_child);
  Value slice(const Value& object, const Expr& slice);

  const Limits limits_;
  Budget budget_;
  int64_t now_unix_s_;
  int line_ = 0;
  int depth_ = 0;
  MarkedString* out_ = nullptr;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> captured_;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
};

}  // namespace millrace::jinja
