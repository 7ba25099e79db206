#include "text/jinja/arguments.h"

#include "base/status.h"

namespace millrace::jinja {

Bound::Bound(std::string_view function, const Arguments& arguments, std::initializer_list<std::string_view> names,
             size_t required)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  CHECK(required <= names_.size());
  if (arguments.positional.size() > names_.size()) {
    fail("{}() takes at most {} arguments, {} were given", function_, names_.size(), arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < names_.size() && names_[i] != name) ++i;
    if (i == names_.size()) fail("{}() has no parameter '{}'", function_, name);
    if (values_[i] != nullptr) fail("{}() got the argument '{}' twice", function_, name);
    values_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) fail("{}() misses the argument '{}'", function_, names_[i]);
  }
}

void Bound::wrong_type(size_t i, std::string_view wanted) const {
  CHECK(i < names_.size());
  require_defined(get(i));
  fail("{}(): '{}' is of type {}, wanted {}", function_, names_[i], type_name(get(i)), wanted);
}

Int Bound::integer(size_t i, Int fallback) const {
  if (!given(i)) return fallback;
  if (!get(i).is_integral()) wrong_type(i, "an integer");
  return get(i).as_int();
}

bool Bound::flag(size_t i, bool fallback) const { return has(i) ? truthy(get(i)) : fallback; }

MarkedString Bound::text(size_t i, std::string_view fallback) const {
  if (!given(i)) return MarkedString(std::string(fallback), true);
  if (!get(i).is_string()) wrong_type(i, "a string");
  return get(i).as_marked();
}

}  // namespace millrace::jinja
