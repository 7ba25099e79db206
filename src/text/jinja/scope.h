// Scopes: which variables a statement or an expression sees. A Scope is one level of them; the ScopeChain is the level
// that a render is in, with those around it.
//
// Scoping is Jinja's: loops (each iteration), macros, call, set and filter blocks open a scope; if does not. A macro
// sees the scope it was defined in, by reference.
//
// Owner: one render (render_state.h). Thread safety: one render, one thread.
// Invariants: there is always a current scope. A captured scope and the macro in it refer to each other in a circle, so
// the chain keeps every captured scope and empties it at the end of the render.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/budget.h"
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

class ScopeChain {
 public:
  // A new scope inside the current one, or inside `parent`, while it lives.
  class Open {
   public:
    explicit Open(ScopeChain& chain) : Open(chain, chain.current_) {}
    Open(ScopeChain& chain, std::shared_ptr<Scope> parent) : chain_(chain), outer_(std::move(chain.current_)) {
      chain_.current_ = std::make_shared<Scope>();
      chain_.current_->parent = std::move(parent);
    }
    ~Open() { chain_.current_ = std::move(outer_); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    ScopeChain& chain_;
    std::shared_ptr<Scope> outer_;
  };

  ScopeChain() = default;
  ~ScopeChain();
  ScopeChain(const ScopeChain&) = delete;
  ScopeChain& operator=(const ScopeChain&) = delete;

  // The innermost variable of this name; nullptr: there is none.
  const Value* find(std::string_view name) const;
  // Sets a variable of the current scope. `name` lives as long as the render.
  void set(std::string_view name, Value value) { current_->set(name, std::move(value)); }
  // `target = value`: of the current scope, or of a namespace. Fails where the numbers of a tuple's items differ.
  void assign(const Target& target, const Value& value, Budget& budget);
  const std::shared_ptr<Scope>& current() const { return current_; }
  // The current scope, for a macro that keeps it.
  const std::shared_ptr<Scope>& capture();

 private:
  std::shared_ptr<Scope> current_ = std::make_shared<Scope>();
  std::vector<std::shared_ptr<Scope>> captured_;
};

}  // namespace millrace::jinja
