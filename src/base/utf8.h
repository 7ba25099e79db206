// UTF-8: one code point at a time, and the check that a text is well formed.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

struct CodePoint {
  char32_t value = 0;
  uint32_t size_bytes = 0;
};

// The code point at `at`. `text` must be valid UTF-8 and `at` the start of a character.
inline CodePoint utf8_at(std::string_view text, size_t at) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) return {p[0], 1};
  if (p[0] < 0xE0) return {static_cast<char32_t>((p[0] & 0x1F) << 6 | (p[1] & 0x3F)), 2};
  if (p[0] < 0xF0) return {static_cast<char32_t>((p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F)), 3};
  return {static_cast<char32_t>((p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F)), 4};
}

// The code point at `at`, which moves behind it; -1, and `at` stays, where no well-formed character begins there or the
// text ends.
int64_t utf8_next(std::string_view text, size_t& at);

inline bool utf8_is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// The start of the character that ends before `at`; `at` > 0 and `text` valid.
inline size_t utf8_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && utf8_is_continuation(text[at]));
  return at;
}

// The first `most` bytes of `text` at most, and no part of a character at their end.
inline std::string_view utf8_prefix(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && utf8_is_continuation(text[most])) --most;
  return text.substr(0, most);
}

void utf8_append(std::string& out, char32_t code_point);

// The offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7), or npos.
size_t utf8_find_invalid(std::string_view text);
inline bool is_utf8(std::string_view text) { return utf8_find_invalid(text) == std::string_view::npos; }

// How a prefix of `text` reads: a complete character, the beginning of one, or bytes that can never become one. For
// kBroken `size_bytes` is the length of the maximal subpart, which becomes one U+FFFD (Unicode 15, section 3.9, "best
// practice").
enum class Utf8State { kComplete, kPartial, kBroken };
struct Utf8Unit {
  Utf8State state;
  size_t size_bytes;
};
Utf8Unit utf8_classify(std::string_view text);  // `text` is not empty

// `bytes` with every maximal broken subpart replaced by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

// `text` with "?" for each byte that is at fault: as long as before, for messages of a bounded length.
std::string utf8_repair(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace millrace
