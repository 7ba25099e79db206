// Literals of Python that models write where JSON is wanted.
//
// Thread safety: free function without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The JSON of the same value: of {'a': [True, None]}, {"a": [true, null]}. nullopt: JSON has no such value (a tuple, a
// key that is no string), or a string has another escape than \\ \' \" \n \r \t.
std::optional<std::string> python_as_json(std::string_view literal);

}  // namespace millrace
