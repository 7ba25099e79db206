#include "http/address_check.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace millrace::http {
namespace {

struct Range4 {
  std::array<uint8_t, 4> base;
  int bits;
};

constexpr Range4 kSpecial4[] = {
    {{0, 0, 0, 0}, 8},        // this network
    {{10, 0, 0, 0}, 8},       // private
    {{100, 64, 0, 0}, 10},    // shared by carriers (CGNAT)
    {{127, 0, 0, 0}, 8},      // loopback
    {{169, 254, 0, 0}, 16},   // link-local, where clouds have their metadata
    {{172, 16, 0, 0}, 12},    // private
    {{192, 0, 0, 0}, 24},     // protocol assignments
    {{192, 0, 2, 0}, 24},     // documentation
    {{192, 88, 99, 0}, 24},   // relays of 6to4
    {{192, 168, 0, 0}, 16},   // private
    {{198, 18, 0, 0}, 15},    // benchmarks
    {{198, 51, 100, 0}, 24},  // documentation
    {{203, 0, 113, 0}, 24},   // documentation
    {{224, 0, 0, 0}, 3},      // multicast, reserved, broadcast
};

struct Range6 {
  std::array<uint8_t, 4> base;  // the first bytes
  int bits;
};

// Within 2000::/3, outside of which nothing is public.
constexpr Range6 kSpecial6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23},  // protocol assignments, Teredo among them
    {{0x20, 0x01, 0x0d, 0xb8}, 32},  // documentation
    {{0x20, 0x02, 0x00, 0x00}, 16},  // 6to4: an IPv4 address is inside
    {{0x3f, 0xff, 0x00, 0x00}, 20},  // documentation
};

bool is_within(const uint8_t* address, const std::array<uint8_t, 4>& base, int bits) {
  for (int i = 0; i < bits; ++i) {
    const int mask = 0x80 >> i % 8;
    if (((address[i / 8] ^ base[static_cast<std::size_t>(i / 8)]) & mask) != 0) return false;
  }
  return true;
}

}  // namespace

bool is_public_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&v4.sin_addr);
    return std::ranges::none_of(kSpecial4, [&](const Range4& one) { return is_within(bytes, one.base, one.bits); });
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof v6);
  const auto* bytes = reinterpret_cast<const uint8_t*>(&v6.sin6_addr);
  if (!is_within(bytes, {0x20, 0, 0, 0}, 3)) return false;
  return std::ranges::none_of(kSpecial6, [&](const Range6& one) { return is_within(bytes, one.base, one.bits); });
}

}  // namespace millrace::http
