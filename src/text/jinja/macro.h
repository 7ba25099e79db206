// MacroObject: a macro, or the body of a call block, as a value.
//
// Thread safety: one render, one thread.
#pragma once

#include <memory>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/scope.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct MacroObject : Object {
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> closure;  // the scope it was defined in
};

// Binds the arguments in the macro's scope, which is the current one. Defaults are computed there, after the parameters
// before them.
void bind_macro(Evaluator& evaluator, const Macro& macro, Arguments& arguments);

}  // namespace millrace::jinja
