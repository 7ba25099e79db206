// StatementRunner: one render of one template, statement by statement.
//
// Owner: Template::render, beside the RenderState. Thread safety: one render, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/render_state.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct LoopObject;
struct MacroObject;

class StatementRunner {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  // `state` outlives the runner.
  explicit StatementRunner(RenderState& state) : state_(state), evaluator_(state, *this) {}
  StatementRunner(const StatementRunner&) = delete;
  StatementRunner& operator=(const StatementRunner&) = delete;

  // Renders. Throws TemplateError; the state's line is then that of the error. `variables` must outlive the state.
  MarkedString run(const Block& body, const Variables& variables);

  // --- Values that are called and whose bodies are statements: their output ---
  Value call_macro(const MacroObject& object, Arguments& arguments);
  Value call_loop(const LoopObject& loop, const Value& iterable);

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  Flow run_block(const Block& block);
  Flow run_statement(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& iterable, int depth0);
  Flow run_with(const Stmt& stmt);
  Flow run_filter_block(const Stmt& stmt);
  void run_set_block(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  void assign(const Target& target, const Value& value) { state_.scopes.assign(target, value, state_.budget); }
  void print(const Value& value);

  RenderState& state_;
  Evaluator evaluator_;
};

}  // namespace millrace::jinja
