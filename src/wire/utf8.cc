#include "wire/utf8.h"

#include <cstdint>
#include <cstring>

namespace millrace::wire {
namespace {

// The length of the character at `at`, 0 where it is at fault. Table 3-7 of the Unicode Standard: what the second byte
// may be depends on the first.
std::size_t character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size() - at) return 0;
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::size_t utf8_fault(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    // Eight bytes at a time while all are ASCII, as most text is.
    if (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const std::size_t length = character_at(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

std::string_view utf8_clip(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (static_cast<uint8_t>(text[max_bytes]) & 0xC0) == 0x80) --max_bytes;
  return text.substr(0, max_bytes);
}

std::string utf8_repair(std::string_view text) {
  std::string repaired;
  while (true) {
    const std::size_t fault = utf8_fault(text);
    repaired += text.substr(0, fault);
    if (fault == text.size()) return repaired;
    // One '?' for each byte at fault: the next byte may begin a character.
    repaired += '?';
    text.remove_prefix(fault + 1);
  }
}

}  // namespace millrace::wire
