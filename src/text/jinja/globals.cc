// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
#include <ctime>

#include "text/jinja/builtins.h"

namespace millrace::jinja {
namespace {

constexpr size_t kMaxDateText = 1024;

Int range_bound(const Value& value) {
  require_defined(value);
  if (!value.is_integral()) fail("range(): '{}' object cannot be interpreted as an integer", type_name(value));
  return value.as_int();
}

Value range(Evaluator& evaluator, Arguments& arguments) {
  size_t count = arguments.positional.size();
  if (count == 0 || count > 3 || !arguments.named.empty()) fail("range() takes 1 to 3 positional arguments");
  Int start = 0, stop = range_bound(arguments.positional[0]), step = 1;
  if (count > 1) {
    start = stop;
    stop = range_bound(arguments.positional[1]);
  }
  if (count > 2) step = range_bound(arguments.positional[2]);
  return make_range(start, stop, step, evaluator.budget().limits());
}

Value dict(Evaluator& evaluator, Arguments& arguments) {
  if (arguments.positional.size() > 1) fail("dict() takes at most 1 positional argument");
  auto out = std::make_shared<DictObject>();
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::kDict)) {
      evaluator.budget().items(source.as<DictObject>().size());
      for (const auto& [key, value] : source.as<DictObject>().items()) out->set(key, value);
      continue;
    }
    for (const Value& pair : iterate(source, evaluator.budget())) {
      std::vector<Value> both = iterate(pair, evaluator.budget());
      if (both.size() != 2) fail("dict(): an item of {} values, wanted 2", both.size());
      out->set(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) out->set(Value::string(name, true), value);
  return make_dict(std::move(out));
}

Value make_namespace(Evaluator& evaluator, Arguments& arguments) {
  Budget& budget = evaluator.budget();
  auto space = std::make_shared<NamespaceObject>();
  budget.items(4);
  for (const Value& source : arguments.positional) {
    // As dict(): a mapping or pairs.
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as<DictObject>().items()) space->set(evaluator.str(key).text(), value);
      continue;
    }
    for (const Value& pair : iterate(source, budget)) {
      std::vector<Value> both = iterate(pair, budget);
      if (both.size() != 2) fail("namespace(): an item of {} values, wanted 2", both.size());
      space->set(evaluator.str(both[0]).text(), both[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) space->set(name, value);
  budget.items(space->members.size());
  evaluator.state().namespaces.push_back(space);
  return Value::object(Kind::kNamespace, std::move(space));
}

Value cycler(Evaluator&, Arguments& arguments) {
  if (arguments.positional.empty()) fail("cycler() wants at least one item");
  auto object = std::make_shared<CyclerObject>();
  object->depth = depth_over(arguments.positional);
  object->items = arguments.positional;
  return Value::object(Kind::kCycler, std::move(object));
}

Value joiner(Evaluator&, Arguments& arguments) {
  Bound bound("joiner", arguments, {"sep"});
  auto object = std::make_shared<JoinerObject>();
  object->separator = bound.get_or(0, Value::string(", ", true));
  object->depth = depth_over({object->separator});
  return Value::object(Kind::kJoiner, std::move(object));
}

Value raise_exception(Evaluator& evaluator, Arguments& arguments) {
  Bound bound("raise_exception", arguments, {"message"}, 1);
  fail("{}", evaluator.str(bound.get(0)).text());
}

Value strftime_now(Evaluator& evaluator, Arguments& arguments) {
  Bound bound("strftime_now", arguments, {"format"}, 1);
  MarkedString format = bound.text(0, "");
  std::time_t now = static_cast<std::time_t>(evaluator.state().now_unix_s);
  std::tm parts{};
  if (localtime_r(&now, &parts) == nullptr)
    fail("strftime_now(): the time {} is out of range", evaluator.state().now_unix_s);
  if (format.empty()) return Value::string("", true);
  // strftime returns 0 both for an empty text and for a full buffer; the space distinguishes them.
  std::string padded = format.text().substr(0, format.text().find('\0')) + " ";
  char buffer[kMaxDateText];
  size_t size = std::strftime(buffer, sizeof buffer, padded.c_str(), &parts);
  if (size == 0) fail_limit("strftime_now() gives more than {} bytes", kMaxDateText - 1);
  return Value::string(std::string(buffer, size - 1), !format.any_untrusted());
}

struct Global {
  std::string_view name;
  Value value;
};

}  // namespace

const Value* find_global(std::string_view name) {
  static const Global kGlobals[] = {
      {"range", make_function("range", range)},
      {"dict", make_function("dict", dict)},
      {"namespace", make_function("namespace", make_namespace)},
      {"cycler", make_function("cycler", cycler)},
      {"joiner", make_function("joiner", joiner)},
      {"raise_exception", make_function("raise_exception", raise_exception)},
      {"strftime_now", make_function("strftime_now", strftime_now)},
  };
  const Global* global = find_named(kGlobals, name);
  return global != nullptr ? &global->value : nullptr;
}

}  // namespace millrace::jinja
