// The arguments of one call, and their binding to parameter names.
//
// Thread safety: values.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace millrace::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by position or name. The strings given to the constructor must outlive it (literals).
class Bound {
 public:
  // Fails when there are more arguments than names, an unknown name, a name given twice, or fewer than `required`
  // bound.
  Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
        size_t required = 0);

  // A written None counts as has(), but not as given().
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& get(size_t i) const { return *values_[i]; }
  Value get_or(size_t i, const Value& fallback) const { return has(i) ? get(i) : fallback; }

  // Typed getters: absent or None gives the fallback, a wrong type fails with the parameter's name.
  Int integer(size_t i, Int fallback) const;
  bool flag(size_t i, bool fallback) const;
  MarkedString text(size_t i, std::string_view fallback) const;
  bool given(size_t i) const { return has(i) && !get(i).is_none(); }

 private:
  [[noreturn]] void wrong_type(size_t i, std::string_view wanted) const;

  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

}  // namespace millrace::jinja
