// The values of JSON Schema's `format` as regular expressions. Thread safety: free functions without state.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::grammar {

// nullopt: not served.
std::optional<std::string_view> format_pattern(std::string_view format);
// Whether the format is one of the standard's, so that ignoring it would let wrong values pass.
bool is_standard_format(std::string_view format);

}  // namespace millrace::grammar
