// The names a template finds ready: filters, tests, global functions, and the methods of values.
//
// Thread safety: the tables are immutable.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

// `value | name(arguments)`, `value is name(arguments)`, `value.name(arguments)`.
using Filter = Value (*)(Evaluator& evaluator, const Value& value, Arguments& arguments);
using Test = bool (*)(Evaluator& evaluator, const Value& value, Arguments& arguments);
using Method = Value (*)(Evaluator& evaluator, const Value& self, Arguments& arguments);

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
struct NamedMethod {
  std::string_view name;
  Method method;
};

// nullptr: no such name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
const Value* find_global(std::string_view name);
// `value | name` and `value is name`; fail where there is no such name.
Value apply_filter(Evaluator& evaluator, std::string_view name, const Value& value, Arguments& arguments);
bool apply_test(Evaluator& evaluator, std::string_view name, const Value& value, Arguments& arguments);
Method find_method(const Value& self, std::string_view name);
// Methods that would change a value, which Jinja's immutable sandbox withholds.
bool is_withheld_method(const Value& self, std::string_view name);

// The tables behind find_filter and find_method, one for each source file; nullptr: not in this one.
Filter find_text_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);
Filter find_selection_filter(std::string_view name);
Filter find_number_filter(std::string_view name);
Method find_string_method(std::string_view name);
Method find_string_predicate(std::string_view name);

// item.a.0.b for the path "a.0.b", or item[path] for an integer; `fallback` (not null) stands in for undefined values.
Value attribute_path(Evaluator& evaluator, const Value& item, const Value& path, const Value* fallback = nullptr);

template <typename Entry, size_t N>
const Entry* find_named(const Entry (&table)[N], std::string_view name) {
  for (const Entry& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace millrace::jinja
