// Filters on sequences and dicts: length, first, sort, unique, groupby, dictsort, batch, ...
#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

// Strings in lower case for comparisons that ignore case; other values as they are.
Value ignore_case(const Value& value) {
  return value.is_string() ? Value::string(map_case(value.as_marked(), CaseMap::kLower)) : value;
}

// The key of one item: a list of parts, for sort's "a,b" sorts by several attributes.
Value sort_key(Evaluator& evaluator, const Value& item, const Value* attributes, bool case_sensitive) {
  std::vector<Value> parts;
  if (attributes != nullptr && attributes->is_string()) {
    for (MarkedString& path : split(attributes->as_marked(), ",", -1, false, evaluator.budget())) {
      parts.push_back(attribute_path(evaluator, item, Value::string(std::move(path))));
    }
  } else {
    parts.push_back(attributes != nullptr ? attribute_path(evaluator, item, *attributes) : item);
  }
  if (!case_sensitive) {
    for (Value& part : parts) part = ignore_case(part);
  }
  return make_list(std::move(parts));
}

// Stable, as Python's sorted(); `reverse` keeps equal items in their order.
std::vector<Value> sorted_by(Evaluator& evaluator, std::vector<Value> items, const std::vector<Value>& keys,
                             bool reverse) {
  std::vector<size_t> indices(items.size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  std::stable_sort(indices.begin(), indices.end(), [&](size_t a, size_t b) {
    return compare(keys[reverse ? b : a], keys[reverse ? a : b], "<", evaluator.budget()) == -1;
  });
  std::vector<Value> out;
  out.reserve(indices.size());
  for (size_t i : indices) out.push_back(items[i]);
  return out;
}

const Value* given(const Bound& bound, size_t i) { return bound.given(i) ? &bound.get(i) : nullptr; }

Value length_filter(Evaluator&, const Value& value, Arguments& arguments) {
  Bound bound("length", arguments, {});
  return Value::integer(static_cast<Int>(length(value)));
}

Value first_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("first", arguments, {});
  if (value.is(Kind::kGenerator)) {
    auto& generator = value.as<SequenceObject>();
    if (generator.position < generator.items.size()) return generator.items[generator.position++];
  } else {
    std::vector<Value> items = iterate(value, evaluator.budget());
    if (!items.empty()) return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("last", arguments, {});
  if (value.is(Kind::kGenerator)) fail("'generator' object is not reversible");
  std::vector<Value> items = iterate(value, evaluator.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("list", arguments, {});
  return make_list(iterate(value, evaluator.budget()));
}

Value reverse_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("reverse", arguments, {});
  std::vector<Value> items = iterate(value, evaluator.budget());
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return make_generator(std::move(items));
  MarkedString out;
  for (const Value& item : items) out.append(item.as_marked());
  return Value::string(std::move(out));
}

Value sort_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = iterate(value, evaluator.budget()), keys;
  for (const Value& item : items) keys.push_back(sort_key(evaluator, item, given(bound, 2), bound.flag(1, false)));
  return make_list(sorted_by(evaluator, std::move(items), keys, bound.flag(0, false)));
}

Value unique_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  DictObject seen;
  std::vector<Value> out;
  for (const Value& item : iterate(value, evaluator.budget())) {
    Value key = bound.given(1) ? attribute_path(evaluator, item, bound.get(1)) : item;
    if (!bound.flag(0, false)) key = ignore_case(key);
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    out.push_back(item);
  }
  return make_generator(std::move(out));
}

template <int sign>
Value extreme_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound(sign > 0 ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  std::optional<Value> best, best_key;
  for (const Value& item : iterate(value, evaluator.budget())) {
    Value key = bound.given(1) ? attribute_path(evaluator, item, bound.get(1)) : item;
    if (!bound.flag(0, false)) key = ignore_case(key);
    if (!best || compare(key, *best_key, sign > 0 ? ">" : "<", evaluator.budget()) == sign) {
      best = item;
      best_key = key;
    }
  }
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
}

Value sum_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("sum", arguments, {"attribute", "start"});
  Value total = bound.get_or(1, Value::integer(0));
  if (total.is_string()) fail("sum: the start is a string, wanted a number or a list");
  for (const Value& item : iterate(value, evaluator.budget())) {
    Value term = bound.given(0) ? attribute_path(evaluator, item, bound.get(0)) : item;
    total = binary_operation("+", total, term, evaluator.budget());
  }
  return total;
}

Value items_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("items", arguments, {});
  std::vector<Value> out;
  if (!value.is_undefined() && !value.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  if (value.is(Kind::kDict)) {
    evaluator.budget().items(2 * value.as<DictObject>().size());
    for (const auto& [key, item] : value.as<DictObject>().items()) out.push_back(make_tuple({key, item}));
  }
  return make_generator(std::move(out));
}

Value dictsort_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  std::string by = bound.text(1, "key").text();
  if (by != "key" && by != "value") fail("dictsort: by is '{}', wanted 'key' or 'value'", by);
  require_defined(value);
  if (!value.is(Kind::kDict)) fail("dictsort: the value is of type {}, wanted a dict", type_name(value));
  std::vector<Value> pairs, keys;
  evaluator.budget().items(2 * value.as<DictObject>().size());
  for (const auto& [key, item] : value.as<DictObject>().items()) {
    const Value& part = by == "key" ? key : item;
    pairs.push_back(make_tuple({key, item}));
    keys.push_back(bound.flag(0, false) ? part : ignore_case(part));
  }
  return make_list(sorted_by(evaluator, std::move(pairs), keys, bound.flag(2, false)));
}

Value group_by_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  std::vector<Value> items = iterate(value, evaluator.budget()), keys;
  auto key_of = [&](const Value& item, bool exact) {
    Value key = attribute_path(evaluator, item, bound.get(0), given(bound, 1));
    return exact ? key : ignore_case(key);
  };
  bool exact = bound.flag(2, false);
  for (const Value& item : items) keys.push_back(key_of(item, exact));
  items = sorted_by(evaluator, std::move(items), keys, false);
  std::vector<Value> out;
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin + 1;
    Value key = key_of(items[begin], exact);
    while (end < items.size() && equal(key_of(items[end], exact), key, evaluator.budget())) ++end;
    std::vector<Value> members(items.begin() + static_cast<std::ptrdiff_t>(begin),
                               items.begin() + static_cast<std::ptrdiff_t>(end));
    Value group = make_tuple({key_of(items[begin], true), make_list(std::move(members))});
    group.as<SequenceObject>().is_group = true;
    out.push_back(std::move(group));
    begin = end;
  }
  return make_list(std::move(out));
}

Value batch_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  Int line = bound.integer(0, 1);
  std::vector<Value> out, row;
  for (const Value& item : iterate(value, evaluator.budget())) {
    if (static_cast<Int>(row.size()) == line) out.push_back(make_list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (bound.given(1) && static_cast<Int>(row.size()) < line) {
      Int missing = line - static_cast<Int>(row.size());
      evaluator.budget().items(missing > INT32_MAX ? INT32_MAX : static_cast<size_t>(missing));
      row.insert(row.end(), static_cast<size_t>(missing), bound.get(1));
    }
    out.push_back(make_list(std::move(row)));
  }
  return make_generator(std::move(out));
}

Value slice_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  Int slices = bound.integer(0, 1);
  if (slices == 0) fail("integer division or modulo by zero");
  std::vector<Value> items = iterate(value, evaluator.budget()), out;
  if (slices < 0) return make_generator({});
  evaluator.budget().items(slices > INT32_MAX ? INT32_MAX : static_cast<size_t>(slices));
  size_t count = static_cast<size_t>(slices), each = items.size() / count, extra = items.size() % count, at = 0;
  for (size_t i = 0; i < count; ++i) {
    size_t size = each + (i < extra ? 1 : 0);
    std::vector<Value> row(items.begin() + static_cast<std::ptrdiff_t>(at),
                           items.begin() + static_cast<std::ptrdiff_t>(at + size));
    if (bound.given(1) && i >= extra) row.push_back(bound.get(1));
    out.push_back(make_list(std::move(row)));
    at += size;
  }
  return make_generator(std::move(out));
}

constexpr NamedFilter kSequenceFilters[] = {
    {"length", length_filter},     {"count", length_filter},     {"first", first_filter}, {"last", last_filter},
    {"list", list_filter},         {"reverse", reverse_filter},  {"sort", sort_filter},   {"unique", unique_filter},
    {"min", extreme_filter<-1>},   {"max", extreme_filter<1>},   {"sum", sum_filter},     {"items", items_filter},
    {"dictsort", dictsort_filter}, {"groupby", group_by_filter}, {"batch", batch_filter}, {"slice", slice_filter},
};

}  // namespace

Value attribute_path(Evaluator& evaluator, const Value& item, const Value& path, const Value* fallback) {
  auto step = [&](const Value& value, const Value& key) {
    Value next = get_item(evaluator, value, key);
    return next.is_undefined() && fallback != nullptr ? *fallback : next;
  };
  if (!path.is_string()) return step(item, path);
  Value value = item;
  for (MarkedString& part : split(path.as_marked(), ".", -1, false, evaluator.budget())) {
    bool digits = !part.empty() && part.text().find_first_not_of("0123456789") == std::string::npos;
    std::optional<Int> index = digits ? parse_int(part.text(), 10) : std::nullopt;
    value = step(value, index ? Value::integer(*index) : Value::string(std::move(part)));
  }
  return value;
}

Filter find_sequence_filter(std::string_view name) {
  const NamedFilter* entry = find_named(kSequenceFilters, name);
  return entry != nullptr ? entry->filter : nullptr;
}

}  // namespace millrace::jinja
