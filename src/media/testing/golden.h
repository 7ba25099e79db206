// Golden data of pictures: the checksum that the scripts of tests/oracles/media_*.py write, and files by their path.
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "media/image.h"

namespace millrace {

// CRC-32 as zlib computes it (ISO 3309, reflected polynomial 0xEDB88320).
inline uint32_t crc32(std::span<const uint8_t> bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t sum = 0xFFFFFFFFu;
  for (const uint8_t byte : bytes) sum = sum >> 8 ^ kTable[(sum ^ byte) & 0xFF];
  return ~sum;
}

inline std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

inline std::string read_text(const std::string& path) {
  const std::vector<uint8_t> bytes = read_bytes(path);
  return std::string(bytes.begin(), bytes.end());
}

// The image that tests/oracles/media_resize.py makes of the same seed: noise, and for odd seeds black and white alone,
// where the filter leaves the range of a byte.
inline Image noise_image(int width, int height, uint64_t seed) {
  Image image(width, height);
  uint8_t* out = image.row(0);
  for (std::size_t i = 0; i < image.size_bytes(); ++i) {
    const auto value = static_cast<uint8_t>(mix_bits(seed * 0x100000000u + i) >> 56);
    out[i] = seed % 2 == 0 ? value : value < 128 ? 0 : 255;
  }
  return image;
}

}  // namespace millrace
