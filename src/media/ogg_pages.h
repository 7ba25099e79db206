// The pages of an Ogg stream (RFC 3533). For this folder alone.
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace millrace::audio {

inline constexpr std::size_t kOggPageHeader = 27;  // then a byte for each segment
inline constexpr std::size_t kOggSerial = 14;      // offsets in a page
inline constexpr std::size_t kOggChecksum = 22;

inline bool is_ogg_page(std::span<const uint8_t> bytes, std::size_t at) {
  return bytes.size() >= at + 4 && std::memcmp(bytes.data() + at, "OggS", 4) == 0;
}

// Of the page that begins at `at`, header included; 0: the bytes end in it.
inline std::size_t ogg_page_size(std::span<const uint8_t> bytes, std::size_t at) {
  const std::size_t left = bytes.size() - at;
  if (left < kOggPageHeader || left - kOggPageHeader < bytes[at + 26]) return 0;
  std::size_t size = kOggPageHeader + bytes[at + 26];
  for (std::size_t i = 0; i < bytes[at + 26]; ++i) size += bytes[at + kOggPageHeader + i];
  return left < size ? 0 : size;
}

// CRC-32 of polynomial 0x04C11DB7, not reflected, over the page with a checksum of 0.
inline uint32_t ogg_checksum(std::span<const uint8_t> page) {
  uint32_t sum = 0;
  for (std::size_t i = 0; i < page.size(); ++i) {
    const uint8_t byte = i >= kOggChecksum && i < kOggChecksum + 4 ? 0 : page[i];
    sum ^= static_cast<uint32_t>(byte) << 24;
    for (int bit = 0; bit < 8; ++bit) sum = sum << 1 ^ (sum >> 31 != 0 ? 0x04C11DB7u : 0);
  }
  return sum;
}

}  // namespace millrace::audio
