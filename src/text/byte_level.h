// The byte-level alphabet of GPT-2: each byte has a printable code point that stands for it in vocabulary files ("Ġ" is
// 0x20).
//
// Source: openai/gpt-2, encoder.py, bytes_to_unicode: the bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for
// themselves, the remaining 68 are numbered upwards from U+0100.
//
// Thread safety: free functions over tables that are built before main or on first use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The byte that `c` stands for, or -1 where `c` is not of the alphabet.
int byte_level_decode(char32_t c);
char32_t byte_level_encode(unsigned char byte);

// `token` as bytes, or nothing where one of its characters is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace millrace
