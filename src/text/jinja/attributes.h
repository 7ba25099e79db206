// object.name and object[key], as Jinja's sandbox resolves them.
//
// Thread safety: free functions; one render, one thread, for the attributes of a loop take items from it.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace millrace::jinja {

// Both with Jinja's fallbacks: undefined where there is no such attribute or item.
Value get_attribute(Evaluator& evaluator, const Value& object, std::string_view name);
Value get_item(Evaluator& evaluator, const Value& object, const Value& key);

}  // namespace millrace::jinja
