#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace millrace {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr size_t kMovedBytes = 68;

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, kFirstMoved + kMovedBytes> of_char{};
};

constexpr Tables make_tables() {
  Tables tables;
  for (auto& value : tables.of_char) value = -1;
  char32_t moved = kFirstMoved;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t c = stands_for_itself(byte) ? byte : moved++;
    tables.of_byte[byte] = c;
    tables.of_char[c] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

int byte_level_decode(char32_t c) { return c < kTables.of_char.size() ? kTables.of_char[c] : -1; }

char32_t byte_level_encode(unsigned char byte) { return kTables.of_byte[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = utf8_at(token, at);
    const int byte = byte_level_decode(c.value);
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += c.size_bytes;
  }
  return bytes;
}

}  // namespace millrace
