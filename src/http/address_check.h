// Which addresses belong to the public internet, by IANA's registries of special-purpose addresses (RFC 6890 and
// later). What is not known to be public is not: loopback, private, link-local, shared (CGNAT), documentation,
// multicast and reserved ranges, and every form of IPv6 that has an IPv4 address inside (mapped, compatible, NAT64,
// 6to4, Teredo).
//
// Thread safety: pure functions.
#pragma once

#include <sys/socket.h>

namespace millrace::http {

// Families other than AF_INET and AF_INET6 are not public.
bool is_public_address(const sockaddr& address);

}  // namespace millrace::http
