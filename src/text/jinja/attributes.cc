#include "text/jinja/attributes.h"

#include "text/jinja/builtins.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/slice.h"

namespace millrace::jinja {
namespace {

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

// What Python's getattr finds, before any item is looked at.
std::optional<Value> object_attribute(Evaluator& evaluator, const Value& object, std::string_view name) {
  if (is_withheld_method(object, name)) {
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)));
  }
  if (object.is(Kind::kNamespace)) {
    const Value* member = object.as<NamespaceObject>().find(name);
    return member != nullptr ? std::optional<Value>(*member) : std::nullopt;
  }
  if (object.is(Kind::kLoop)) return loop_attribute(evaluator, object, name);
  if (object.is(Kind::kMacro) && name == "name") {
    return Value::string(object.as<MacroObject>().macro->name, true);
  }
  if (object.is(Kind::kTuple) && object.as<SequenceObject>().is_group) {
    if (name == "grouper") return object.as<SequenceObject>().items[0];
    if (name == "list") return object.as<SequenceObject>().items[1];
  }
  if (object.is(Kind::kCycler) && name == "current") {
    const auto& cycler = object.as<CyclerObject>();
    return cycler.items[cycler.position % cycler.items.size()];
  }
  Method method = find_method(object, name);
  if (method == nullptr) return std::nullopt;
  return make_function(
      std::string(name),
      [method, object](Evaluator& evaluator, Arguments& arguments) { return method(evaluator, object, arguments); },
      object);
}

}  // namespace

Value get_attribute(Evaluator& evaluator, const Value& object, std::string_view name) {
  require_defined(object);
  if (std::optional<Value> found = object_attribute(evaluator, object, name)) return *found;
  if (object.is(Kind::kDict)) {
    if (const Value* value = object.as<DictObject>().find(name)) return *value;
  }
  return no_attribute(object, name);
}

Value get_item(Evaluator& evaluator, const Value& object, const Value& key) {
  require_defined(object);
  if (object.is(Kind::kDict)) {
    bool hashable = !key.is(Kind::kList) && !key.is(Kind::kDict);
    const Value* value = hashable ? object.as<DictObject>().find(key) : nullptr;
    if (value != nullptr) return *value;
  } else if (key.is_integral()) {
    if (std::optional<Value> value = index_value(object, key.as_int())) return *value;
  }
  if (!key.is_string()) {
    return Value::undefined(
        fmt::format("'{} object' has no element {}", type_name(object), to_repr(key, evaluator.budget()).text()));
  }
  if (std::optional<Value> found = object_attribute(evaluator, object, key.as_text())) return *found;
  return no_attribute(object, key.as_text());
}

}  // namespace millrace::jinja
