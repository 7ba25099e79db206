// The known name that a misspelled one most likely means.
// Thread safety: pure function.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace {

// By the fewest insertions, deletions and replacements (Levenshtein); a name that contains the given one, or is
// contained in it, comes first. `known` is not empty. Only the first 64 bytes of `name` are looked at.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);

// For the end of an error about an unknown name: "; perhaps 'top_p'" where one is near, else "; there are 'a', 'b'"
// where there are few, else nothing.
std::string suggestion(std::string_view name, std::span<const std::string_view> known);

}  // namespace millrace
