// The methods of dicts, lists, tuples, numbers, cyclers; the is...() predicates of strings; and the lookup of all
// methods.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"

namespace millrace::jinja {
namespace {

// --- dict ---

Value dict_get(Evaluator&, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) fail("get() takes no keyword arguments");
  Bound bound("get", arguments, {"key", "default"}, 1);
  const Value* value = self.as<DictObject>().find(bound.get(0));
  return value != nullptr ? *value : bound.get_or(1, Value());
}

Value dict_keys(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("keys", arguments, {});
  return make_sequence(Kind::kView, iterate(self, evaluator.budget()), "dict_keys");
}

Value dict_values(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("values", arguments, {});
  std::vector<Value> out;
  evaluator.budget().items(self.as<DictObject>().size());
  for (const auto& [key, value] : self.as<DictObject>().items()) out.push_back(value);
  return make_sequence(Kind::kView, std::move(out), "dict_values");
}

Value dict_items(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("items", arguments, {});
  std::vector<Value> out;
  evaluator.budget().items(2 * self.as<DictObject>().size());
  for (const auto& [key, value] : self.as<DictObject>().items()) out.push_back(make_tuple({key, value}));
  return make_sequence(Kind::kView, std::move(out), "dict_items");
}

Value copy(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("copy", arguments, {});
  evaluator.budget().items(length(self));
  if (self.is(Kind::kDict)) return make_dict(std::make_shared<DictObject>(self.as<DictObject>()));
  return make_list(self.as<SequenceObject>().items);
}

// --- list and tuple ---

Value sequence_index(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("index", arguments, {"value", "start", "stop"}, 1);
  std::vector<Value> items = iterate(self, evaluator.budget());
  Int size = static_cast<Int>(items.size());
  auto clamp = [&](Int value) { return value < 0 ? std::max(value + size, Int{0}) : std::min(value, size); };
  for (Int i = clamp(bound.integer(1, 0)), stop = clamp(bound.integer(2, size)); i < stop; ++i) {
    if (equal(items[static_cast<size_t>(i)], bound.get(0), evaluator.budget())) return Value::integer(i);
  }
  fail("the value is not in the {}", type_name(self));
}

Value sequence_count(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("count", arguments, {"value"}, 1);
  Int count = 0;
  for (const Value& item : iterate(self, evaluator.budget())) count += equal(item, bound.get(0), evaluator.budget());
  return Value::integer(count);
}

// --- float, int, cycler ---

Value is_integer(Evaluator&, const Value& self, Arguments&) {
  return Value::boolean(std::isfinite(self.as_float()) && self.as_float() == std::floor(self.as_float()));
}

Value bit_length(Evaluator&, const Value& self, Arguments&) {
  Int bits = 0;
  for (Int rest = self.as_int(); rest != 0; rest /= 2) ++bits;
  return Value::integer(bits);
}

Value cycler_next(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("next", arguments, {});
  auto& cycler = self.as<CyclerObject>();
  return cycler.items[cycler.position++ % cycler.items.size()];
}

Value cycler_reset(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("reset", arguments, {});
  self.as<CyclerObject>().position = 0;
  return Value();
}

// --- str predicates ---

template <bool (*test)(uint32_t)>
Value all_characters(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("predicate", arguments, {});
  const std::string& text = self.as_text();
  for (size_t at = 0; at < text.size();) {
    if (!test(next_code_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

// Superscripts and circled digits are digits without being decimal.
bool is_digit(uint32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}
bool is_alnum(uint32_t c) { return is_alpha(c) || is_numeric(c); }

Value is_ascii_text(Evaluator&, const Value& self, Arguments&) { return Value::boolean(is_ascii(self.as_text())); }

Value is_printable_text(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  return self.as_text().empty() ? Value::boolean(true) : all_characters<is_printable>(evaluator, self, arguments);
}

Value is_identifier(Evaluator&, const Value& self, Arguments&) {
  const std::string& text = self.as_text();
  for (size_t at = 0; at < text.size();) {
    bool first = at == 0;
    uint32_t c = next_code_point(text, at);
    if (first ? !is_identifier_start(c) : !is_identifier_part(c)) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

template <bool upper>
Value is_case(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  return Value::boolean(find_test(upper ? "upper" : "lower")(evaluator, self, arguments));
}

Value is_title_text(Evaluator&, const Value& self, Arguments&) {
  const std::string& text = self.as_text();
  bool any = false, previous_cased = false;
  for (size_t at = 0; at < text.size();) {
    uint32_t c = next_code_point(text, at);
    bool capital = is_upper(c) || is_title(c), small = is_lower(c);
    if ((capital && previous_cased) || (small && !previous_cased)) return Value::boolean(false);
    previous_cased = capital || small;
    any |= previous_cased;
  }
  return Value::boolean(any);
}

constexpr NamedMethod kDictMethods[] = {
    {"get", dict_get}, {"keys", dict_keys}, {"values", dict_values}, {"items", dict_items}, {"copy", copy},
};
constexpr NamedMethod kListMethods[] = {{"index", sequence_index}, {"count", sequence_count}, {"copy", copy}};
constexpr NamedMethod kTupleMethods[] = {{"index", sequence_index}, {"count", sequence_count}};
constexpr NamedMethod kFloatMethods[] = {{"is_integer", is_integer}};
constexpr NamedMethod kIntMethods[] = {{"bit_length", bit_length}};
constexpr NamedMethod kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};
constexpr NamedMethod kStringPredicates[] = {
    {"isspace", all_characters<is_space>}, {"isalpha", all_characters<is_alpha>},
    {"isalnum", all_characters<is_alnum>}, {"isdecimal", all_characters<is_decimal>},
    {"isdigit", all_characters<is_digit>}, {"isnumeric", all_characters<is_numeric>},
    {"isprintable", is_printable_text},    {"isascii", is_ascii_text},
    {"isidentifier", is_identifier},       {"isupper", is_case<true>},
    {"islower", is_case<false>},           {"istitle", is_title_text},
};

constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListChanges[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <size_t N>
Method find_in(const NamedMethod (&table)[N], std::string_view name) {
  const NamedMethod* entry = find_named(table, name);
  return entry != nullptr ? entry->method : nullptr;
}

}  // namespace

Method find_string_predicate(std::string_view name) { return find_in(kStringPredicates, name); }

Method find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString: {
      Method method = find_string_method(name);
      return method != nullptr ? method : find_string_predicate(name);
    }
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kList:
      return find_in(kListMethods, name);
    case Kind::kTuple:
      return find_in(kTupleMethods, name);
    case Kind::kFloat:
      return find_in(kFloatMethods, name);
    case Kind::kInt:
      return find_in(kIntMethods, name);
    case Kind::kCycler:
      return find_in(kCyclerMethods, name);
    default:
      return nullptr;
  }
}

bool is_withheld_method(const Value& self, std::string_view name) {
  auto holds = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (self.is(Kind::kDict)) return holds(kDictChanges);
  return self.is(Kind::kList) && holds(kListChanges);
}

}  // namespace millrace::jinja
