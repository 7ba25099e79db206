// A text without the white space around it. Thread safety: a pure function.
#pragma once

#include <string_view>

namespace millrace {

inline constexpr std::string_view kBlanks = " \t";          // inside a line of HTTP
inline constexpr std::string_view kWhiteSpace = " \t\r\n";  // of JSON

// A part of `text`.
inline std::string_view trimmed(std::string_view text, std::string_view space = kWhiteSpace) {
  const std::size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return text.substr(0, 0);
  return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

}  // namespace millrace
