#include "media/data_url.h"

#include <array>

namespace millrace {
namespace {

constexpr std::string_view kScheme = "data:";
constexpr std::string_view kBase64 = "base64";
// Long enough for any media type; a URL without a comma is not searched further.
constexpr std::size_t kMaxHeadBytes = 1024;
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kInvalid = 0xFF;

constexpr std::array<uint8_t, 256> kDigits = [] {
  std::array<uint8_t, 256> digits{};
  digits.fill(kInvalid);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<uint8_t>(i);
  }
  return digits;
}();

uint32_t digit(char c) { return kDigits[static_cast<unsigned char>(c)]; }

bool equal_ignoring_case(std::string_view a, std::string_view lower) {
  if (a.size() != lower.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char c = a[i] >= 'A' && a[i] <= 'Z' ? static_cast<char>(a[i] - 'A' + 'a') : a[i];
    if (c != lower[i]) return false;
  }
  return true;
}

// The error for the first character outside of the alphabet, at or after `offset`.
Status bad_character(std::string_view text, std::size_t offset) {
  while (offset < text.size() && digit(text[offset]) != kInvalid) ++offset;
  const auto c = offset < text.size() ? static_cast<unsigned char>(text[offset]) : 0;
  return invalid_argument(
      "its base64 has the byte 0x{:02x} at offset {}; wanted A-Z, a-z, 0-9, + and /, and = at the end", c, offset);
}

// The last group of four characters: one or two of them may be padding.
Status decode_last(std::string_view text, std::size_t padding, uint8_t* out) {
  const std::size_t offset = text.size() - 4;
  uint32_t bits = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const uint32_t value = i < 4 - padding ? digit(text[offset + i]) : 0;
    if (value == kInvalid) return bad_character(text, offset);
    bits = bits << 6 | value;
  }
  if ((bits & ((1u << 8 * padding) - 1)) != 0) {
    return invalid_argument("its base64 ends with bits that belong to no byte; wanted 0 before the padding");
  }
  for (std::size_t i = 0; i < 3 - padding; ++i) out[i] = static_cast<uint8_t>(bits >> (16 - 8 * i));
  return ok_status();
}

}  // namespace

bool is_data_url(std::string_view url) {
  return url.size() >= kScheme.size() && equal_ignoring_case(url.substr(0, kScheme.size()), kScheme);
}

Result<std::vector<uint8_t>> decode_base64(std::string_view text, std::size_t max_bytes) {
  if (text.size() % 4 != 0) {
    return invalid_argument("its base64 has {} characters; wanted a multiple of 4, with padding", text.size());
  }
  if (text.empty()) return std::vector<uint8_t>();
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const std::size_t size = text.size() / 4 * 3 - padding;
  if (size > max_bytes) {
    return error(StatusCode::kTooLarge, "its base64 has {} bytes; wanted at most {}", size, max_bytes);
  }
  std::vector<uint8_t> out(size);
  uint8_t* to = out.data();
  const std::size_t last = text.size() - 4;
  for (std::size_t i = 0; i < last; i += 4, to += 3) {
    const uint32_t a = digit(text[i]), b = digit(text[i + 1]), c = digit(text[i + 2]), d = digit(text[i + 3]);
    if ((a | b | c | d) & 0x80) return bad_character(text, i);
    const uint32_t bits = a << 18 | b << 12 | c << 6 | d;
    to[0] = static_cast<uint8_t>(bits >> 16);
    to[1] = static_cast<uint8_t>(bits >> 8);
    to[2] = static_cast<uint8_t>(bits);
  }
  RETURN_IF_ERROR(decode_last(text, padding, to));
  return out;
}

Result<DataUrl> read_data_url(std::string_view url, std::size_t max_bytes) {
  if (!is_data_url(url)) return invalid_argument("the URL does not begin with 'data:'");
  const std::string_view rest = url.substr(kScheme.size());
  const std::size_t comma = rest.substr(0, kMaxHeadBytes).find(',');
  if (comma == std::string_view::npos) {
    return invalid_argument("the data URL has no comma in its first {} bytes; wanted data:TYPE;base64,DATA",
                            kMaxHeadBytes);
  }
  const std::string_view head = rest.substr(0, comma);
  const std::size_t last = head.rfind(';');
  if (last == std::string_view::npos || !equal_ignoring_case(head.substr(last + 1), kBase64)) {
    return error(StatusCode::kUnsupported, "the data URL is not base64; wanted data:TYPE;base64,DATA");
  }
  auto bytes = decode_base64(rest.substr(comma + 1), max_bytes);
  if (!bytes.ok()) return bytes.status().with_prefix("the data URL");
  return DataUrl{head.substr(0, last), std::move(bytes).value()};
}

}  // namespace millrace
