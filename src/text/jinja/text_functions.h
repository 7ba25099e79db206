// Python's string operations on marked text, shared by filters and methods. Indices are bytes here.
//
// Thread safety: free functions without state.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/budget.h"
#include "text/jinja/marked_string.h"

namespace millrace::jinja {

enum class Ends { kLeft, kRight, kBoth };

// str.strip(chars): whitespace when `chars` is unset, else any of its characters.
MarkedString strip(const MarkedString& text, std::optional<std::string_view> chars, Ends ends);

// str.replace(from, to, limit); limit < 0: all.
MarkedString replace(const MarkedString& text, std::string_view from, const MarkedString& to, int64_t limit,
                     Budget& budget);

// str.split(separator, limit) and rsplit; whitespace runs when `separator` is unset; limit < 0: all. `separator` is not
// empty.
std::vector<MarkedString> split(const MarkedString& text, std::optional<std::string_view> separator, int64_t limit,
                                bool from_right, Budget& budget);

std::vector<MarkedString> split_lines(const MarkedString& text, bool keep_ends, Budget& budget);

// separator.join(parts).
MarkedString join(const MarkedString& separator, const std::vector<MarkedString>& parts, Budget& budget);

// `fill` repeated to a width in characters, on both sides for str.center, which puts the odd one as Python does.
MarkedString pad(const MarkedString& text, size_t width, Ends ends, const MarkedString& fill, Budget& budget);

}  // namespace millrace::jinja
