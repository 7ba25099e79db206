// Python's slices and indices.
//
// Thread safety: free functions without state.
#pragma once

#include <optional>

#include "text/jinja/value.h"

namespace millrace::jinja {

struct SliceBounds {
  std::optional<Int> start, stop, step;
};

// object[start:stop:step] of a string, list, tuple or range; fails for other types and for step 0.
Value slice_value(const Value& object, const SliceBounds& bounds, Budget& budget);

// object[index] of the same types; negative indices count from the end. nullopt: out of range or another type.
std::optional<Value> index_value(const Value& object, Int index);

}  // namespace millrace::jinja
