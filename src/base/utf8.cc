#include "base/utf8.h"

#include <cstring>

namespace millrace {

void utf8_append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

Utf8Unit utf8_classify(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned lead = p[0];
  if (lead < 0x80) return {Utf8State::kComplete, 1};
  // The second byte's range depends on the lead: it shuts out overlong forms, surrogates and values above U+10FFFF.
  unsigned low = 0x80, high = 0xBF;
  size_t need = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8State::kBroken, 1};
  }
  for (size_t i = 1; i < need; ++i) {
    if (i == text.size()) return {Utf8State::kPartial, i};
    if (p[i] < low || p[i] > high) return {Utf8State::kBroken, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8State::kComplete, need};
}

int64_t utf8_next(std::string_view text, size_t& at) {
  if (at >= text.size() || utf8_classify(text.substr(at)).state != Utf8State::kComplete) return -1;
  const CodePoint c = utf8_at(text, at);
  at += c.size_bytes;
  return static_cast<int64_t>(c.value);
}

size_t utf8_find_invalid(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: most text is mostly ASCII.
    while (at + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080ULL) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Unit unit = utf8_classify(text.substr(at));
    if (unit.state != Utf8State::kComplete) return at;
    at += unit.size_bytes;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Unit unit = utf8_classify(bytes.substr(at));
    if (unit.state == Utf8State::kComplete) {
      out.append(bytes.substr(at, unit.size_bytes));
    } else {
      out.append(kReplacementCharacter);
    }
    at += unit.size_bytes;
  }
  return out;
}

std::string utf8_repair(std::string_view text) {
  std::string repaired;
  for (size_t fault = utf8_find_invalid(text); fault != std::string_view::npos; fault = utf8_find_invalid(text)) {
    repaired += text.substr(0, fault);
    // One '?' for each byte at fault: the next byte may begin a character.
    repaired += '?';
    text.remove_prefix(fault + 1);
  }
  repaired += text;
  return repaired;
}

}  // namespace millrace
