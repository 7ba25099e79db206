// UTF-8 and Python's idea of characters: indices count code points, case follows Unicode's full mappings.
//
// Bytes that are not UTF-8 count as one character each and map to themselves, so no input is refused here.
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/marked_string.h"

namespace millrace::jinja {

// The code point at `at` (at < text.size()), which moves behind it. A bad byte is returned as 0x110000 + byte.
uint32_t next_code_point(std::string_view text, size_t& at);
void append_utf8(std::string& out, uint32_t code_point);

bool is_ascii(std::string_view text);
size_t count_code_points(std::string_view text);
// The byte offset of the character with this index; text.size() when the index is past the end.
size_t byte_offset(std::string_view text, size_t index);
// The byte where the character before `at` (> 0) starts.
size_t previous_boundary(std::string_view text, size_t at);

bool is_space(uint32_t code_point);      // str.isspace()
bool is_alpha(uint32_t code_point);      // str.isalpha()
bool is_decimal(uint32_t code_point);    // str.isdecimal()
bool is_numeric(uint32_t code_point);    // categories Nd, Nl, No
bool is_printable(uint32_t code_point);  // what repr() shows as it is
bool is_upper(uint32_t code_point);
bool is_lower(uint32_t code_point);
bool is_title(uint32_t code_point);
bool is_identifier_start(uint32_t code_point);
bool is_identifier_part(uint32_t code_point);

enum class CaseMap { kUpper, kLower, kTitle, kCapitalize, kSwap, kFold };
// str.upper(), lower(), title(), capitalize(), swapcase(), casefold(). Each result character carries its source's mark.
MarkedString map_case(const MarkedString& text, CaseMap map);

}  // namespace millrace::jinja
