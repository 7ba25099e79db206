#include "text/jinja/macro.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/jinja/evaluator.h"

namespace millrace::jinja {
namespace {

std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    if (arguments.named[i].first != name) continue;
    Value value = std::move(arguments.named[i].second);
    arguments.named.erase(arguments.named.begin() + static_cast<std::ptrdiff_t>(i));
    return value;
  }
  return std::nullopt;
}

void bind_parameters(Evaluator& evaluator, const Macro& macro, Arguments& arguments) {
  size_t count = macro.parameters.size();
  CHECK(macro.defaults.size() <= count);
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    size_t first_default = count - macro.defaults.size();
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take_named(arguments, name);
    }
    if (!value && i >= first_default) value = evaluator.eval(*macro.defaults[i - first_default]);
    if (!value) value = Value::undefined(fmt::format("parameter '{}' was not provided", name));
    evaluator.state().scopes.set(name, *value);
  }
}

}  // namespace

void bind_macro(Evaluator& evaluator, const Macro& macro, Arguments& arguments) {
  bind_parameters(evaluator, macro, arguments);
  ScopeChain& scopes = evaluator.state().scopes;
  if (macro.uses_caller) {
    scopes.set("caller", take_named(arguments, "caller").value_or(Value::undefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [name, value] : arguments.named) dict->set(Value::string(name, true), value);
    scopes.set("kwargs", make_dict(std::move(dict)));
  } else if (!arguments.named.empty()) {
    fail("the macro '{}' takes no keyword argument '{}'", macro.name, arguments.named[0].first);
  }
  size_t count = macro.parameters.size();
  size_t extra = std::min(count, arguments.positional.size());
  if (macro.uses_varargs) {
    scopes.set("varargs", make_tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(extra),
                                      arguments.positional.end()}));
  } else if (arguments.positional.size() > count) {
    fail("the macro '{}' takes at most {} arguments, {} were given", macro.name, count, arguments.positional.size());
  }
}

}  // namespace millrace::jinja
