// Whether bytes are well-formed UTF-8: what every string on the wire and in a payload tree must be.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace::wire {

// The offset of the first byte that no well-formed UTF-8 has there (an overlong form, a surrogate, a character above
// U+10FFFF or one that is cut off count), or text.size().
std::size_t utf8_fault(std::string_view text);
inline bool is_utf8(std::string_view text) { return utf8_fault(text) == text.size(); }

// The longest start of `text` that has at most max_bytes and ends with a whole character. `text` is UTF-8.
std::string_view utf8_clip(std::string_view text, std::size_t max_bytes);

// `text` with "?" for each byte that is at fault.
std::string utf8_repair(std::string_view text);

}  // namespace millrace::wire
