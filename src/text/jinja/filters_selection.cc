// default, attr, map, select, reject, selectattr, rejectattr; and the lookup of all filters.
#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"

namespace millrace::jinja {
namespace {

Value default_filter(Evaluator&, const Value& value, Arguments& arguments) {
  Bound bound("default", arguments, {"default_value", "boolean"});
  bool missing = value.is_undefined() || (bound.flag(1, false) && !truthy(value));
  return missing ? bound.get_or(0, Value::string("", true)) : value;
}

Value attr_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("attr", arguments, {"name"}, 1);
  std::string name = bound.text(0, "").text();
  require_defined(value);
  // Attributes only, never the items of a dict.
  if (value.is(Kind::kDict) && find_method(value, name) == nullptr) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return get_attribute(evaluator, value, name);
}

Value map_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  std::vector<Value> out;
  bool by_attribute = arguments.positional.empty() && !arguments.named.empty();
  if (!truthy(value)) return make_generator({});
  if (by_attribute) {
    Bound bound("map", arguments, {"attribute", "default"}, 1);
    const Value* fallback = bound.given(1) ? &bound.get(1) : nullptr;
    for (const Value& item : iterate(value, evaluator.budget())) {
      out.push_back(attribute_path(evaluator, item, bound.get(0), fallback));
    }
    return make_generator(std::move(out));
  }
  if (arguments.positional.empty()) fail("map requires a filter argument");
  std::string filter = evaluator.str(arguments.positional[0]).text();
  for (const Value& item : iterate(value, evaluator.budget())) {
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    out.push_back(apply_filter(evaluator, filter, item, rest));
  }
  return make_generator(std::move(out));
}

// `by_attribute`: the first argument is a path and the test sees what it leads to.
Value choose(Evaluator& evaluator, const Value& value, Arguments& arguments, bool by_attribute, bool wanted) {
  size_t first = by_attribute ? 1 : 0;
  if (!truthy(value)) return make_generator({});
  std::vector<Value> items = iterate(value, evaluator.budget()), out;
  if (items.empty()) return make_generator({});
  if (arguments.positional.size() < first) fail("Missing parameter for attribute name");
  bool has_test = arguments.positional.size() > first;
  std::string test = has_test ? evaluator.str(arguments.positional[first]).text() : "";
  for (const Value& item : items) {
    Value subject = by_attribute ? attribute_path(evaluator, item, arguments.positional[0]) : item;
    bool passes = false;
    if (has_test) {
      Arguments rest{
          {arguments.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1, arguments.positional.end()},
          arguments.named};
      passes = apply_test(evaluator, test, subject, rest);
    } else {
      passes = truthy(subject);
    }
    if (passes == wanted) out.push_back(item);
  }
  return make_generator(std::move(out));
}

template <bool by_attribute, bool wanted>
Value choose_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  return choose(evaluator, value, arguments, by_attribute, wanted);
}

constexpr NamedFilter kSelectionFilters[] = {
    {"default", default_filter},
    {"d", default_filter},
    {"attr", attr_filter},
    {"map", map_filter},
    {"select", choose_filter<false, true>},
    {"reject", choose_filter<false, false>},
    {"selectattr", choose_filter<true, true>},
    {"rejectattr", choose_filter<true, false>},
};

}  // namespace

Filter find_selection_filter(std::string_view name) {
  const NamedFilter* entry = find_named(kSelectionFilters, name);
  return entry != nullptr ? entry->filter : nullptr;
}

Filter find_filter(std::string_view name) {
  using Find = Filter (*)(std::string_view);
  for (Find find : {find_text_filter, find_selection_filter, find_sequence_filter, find_number_filter}) {
    if (Filter filter = find(name)) return filter;
  }
  return nullptr;
}

Value apply_filter(Evaluator& evaluator, std::string_view name, const Value& value, Arguments& arguments) {
  Filter filter = find_filter(name);
  if (filter == nullptr) fail("no filter named '{}'", name);
  evaluator.budget().steps();
  return filter(evaluator, value, arguments);
}

}  // namespace millrace::jinja
