// Tokens to a tree. Recursive descent; nesting and the height of expressions are bounded.
//
// Thread safety: a free function.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/limits.h"

namespace millrace::jinja {

// Throws TemplateError, always with a line.
Block parse_template(std::string_view source, const Limits& limits);

}  // namespace millrace::jinja
