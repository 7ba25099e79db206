// The escapes of Python's string literals.
//
// Thread safety: a free function.
#pragma once

#include <string>
#include <string_view>

namespace millrace::jinja {

// What a string literal between its quotes stands for. Unknown escapes stay as they are, as in Python. Throws
// TemplateError for cut-off escapes, for \N{...} names and for surrogates, which UTF-8 cannot hold.
std::string resolve_escapes(std::string_view body, int line);

}  // namespace millrace::jinja
