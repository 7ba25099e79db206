// Which addresses a fetch may connect to.
#include "http/address_check.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

namespace millrace::http {
namespace {

bool is_public(const std::string& text) {
  sockaddr_storage storage{};
  const bool v6 = text.find(':') != std::string::npos;
  auto* v4_address = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6_address = reinterpret_cast<sockaddr_in6*>(&storage);
  storage.ss_family = static_cast<sa_family_t>(v6 ? AF_INET6 : AF_INET);
  const int read = ::inet_pton(storage.ss_family, text.c_str(),
                               v6 ? static_cast<void*>(&v6_address->sin6_addr) : &v4_address->sin_addr);
  EXPECT_EQ(read, 1) << text;
  return is_public_address(reinterpret_cast<const sockaddr&>(storage));
}

TEST(AddressCheck, RangesEndWhereTheRegistriesEndThem) {
  for (const char* address : {"1.1.1.1",
                              "8.8.8.8",
                              "9.255.255.255",
                              "11.0.0.0",
                              "100.63.255.255",
                              "100.128.0.0",
                              "126.255.255.255",
                              "128.0.0.0",
                              "169.253.255.255",
                              "169.255.0.0",
                              "172.15.255.255",
                              "172.32.0.0",
                              "192.0.1.0",
                              "192.167.255.255",
                              "192.169.0.0",
                              "198.17.255.255",
                              "198.20.0.0",
                              "203.0.112.255",
                              "203.0.114.0",
                              "223.255.255.255",
                              "2001:200::1",
                              "2606:4700::1111",
                              "2a00:1450:4001:81b::200e",
                              "2003::1",
                              "3ffe::1"}) {
    EXPECT_TRUE(is_public(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0",     "0.255.255.255",   "10.0.0.1",        "10.255.255.255", "100.64.0.0",     "100.127.255.255",
        "127.0.0.1",   "127.255.255.255", "169.254.169.254", "172.16.0.0",     "172.31.255.255", "192.0.0.8",
        "192.0.2.1",   "192.88.99.1",     "192.168.0.1",     "198.18.0.0",     "198.19.255.255", "198.51.100.7",
        "203.0.113.9", "224.0.0.1",       "239.1.2.3",       "240.0.0.1",      "255.255.255.255"}) {
    EXPECT_FALSE(is_public(address)) << address;
  }
}

TEST(AddressCheck, NoFormOfIpv6LeadsToAnIpv4Address) {
  for (const char* address :
       {"::",           "::1",           "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8",   "64:ff9b::8.8.8.8",
        "64:ff9b:1::1", "2002:7f00:1::", "2001::1",          "2001:1ff::1",    "100::1",      "fc00::1",
        "fd12::1",      "fe80::1",       "fec0::1",          "ff02::1",        "2001:db8::1", "3fff::1",
        "3fff:fff::1",  "4000::1"}) {
    EXPECT_FALSE(is_public(address)) << address;
  }
  sockaddr other{};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(is_public_address(other));
}

}  // namespace
}  // namespace millrace::http
