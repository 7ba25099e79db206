// Integers as both protocols have them: little-endian, unaligned, without padding. Thread safety: free functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace millrace::collective {

static_assert(std::endian::native == std::endian::little, "both protocols send integers as they are in memory");

template <typename T>
void append_int(std::string& out, T value) {
  static_assert(std::is_integral_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// `offset` + sizeof(T) lies within `bytes`.
template <typename T>
T read_int(std::string_view bytes, std::size_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::span<std::byte> bytes_of(std::string& text) { return std::as_writable_bytes(std::span(text)); }

}  // namespace millrace::collective
