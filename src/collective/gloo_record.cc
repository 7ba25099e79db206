#include "collective/gloo_record.h"

#include <netinet/in.h>

#include <cstring>

#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
namespace {

// gloo/transport/tcp/address.cc: an address is its struct as it lies in memory, sockaddr_storage and a sequence number.
constexpr std::size_t kStorageBytes = 128;  // sizeof(sockaddr_storage), as it is in memory
constexpr std::size_t kAddressBytes = kStorageBytes + 8;
static_assert(sizeof(sockaddr_storage) == kStorageBytes);

void append_address(std::string& out, const SocketAddress& address) {
  out.append(reinterpret_cast<const char*>(&address.storage), kStorageBytes);
  append_int<int64_t>(out, -1);  // the pair's number: that of a listener is none
}

Result<SocketAddress> read_address(std::string_view bytes) {
  CHECK(bytes.size() == kAddressBytes);
  SocketAddress address;
  std::memcpy(&address.storage, bytes.data(), kStorageBytes);
  const int family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) {
    return invalid_argument("a rank's address has the family {}; wanted IPv4 ({}) or IPv6 ({})", family, AF_INET,
                            AF_INET6);
  }
  // The length is not in the record; it follows from the family, and bytes behind it are not looked at.
  address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (address.port() == 0) return invalid_argument("a rank's address has port 0");
  return address;
}

struct HostBytes {
  const void* data;
  std::size_t size;
  uint16_t raw_port;  // in network byte sequence, as gloo compares it
};

HostBytes host_bytes(const SocketAddress& a) {
  if (a.v4()) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(a.storage);
    return {&v4.sin_addr, sizeof(v4.sin_addr), v4.sin_port};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(a.storage);
  return {&v6.sin6_addr, sizeof(v6.sin6_addr), v6.sin6_port};
}

}  // namespace

std::string encode_rank_record(const RankRecord& record) {
  std::string out;
  append_int<uint64_t>(out, record.host.size());
  out += record.host;
  append_int<uint64_t>(out, kAddressBytes);
  append_address(out, record.listener);
  for (const int64_t id : record.pair_ids) append_int(out, id);
  return out;
}

Result<RankRecord> decode_rank_record(std::string_view bytes, int world_size) {
  const std::size_t ids_bytes = 8 * static_cast<std::size_t>(world_size);
  const std::size_t fixed = 8 + 8 + kAddressBytes + ids_bytes;
  // The limit before the sum: `fixed + host_bytes` may wrap otherwise.
  const uint64_t host_bytes = bytes.size() >= fixed ? read_int<uint64_t>(bytes) : 0;
  if (bytes.size() < fixed || host_bytes > kMaxHostNameBytes || bytes.size() != fixed + host_bytes) {
    return invalid_argument("a rank's record has {} bytes and a host name of {}; wanted {} and the name, for {} ranks",
                            bytes.size(), host_bytes, fixed, world_size);
  }
  RankRecord record;
  record.host = bytes.substr(8, host_bytes);
  bytes.remove_prefix(8 + host_bytes);
  if (const auto size = read_int<uint64_t>(bytes); size != kAddressBytes) {
    return invalid_argument("the address in a rank's record has {} bytes; wanted {}", size, kAddressBytes);
  }
  ASSIGN_OR_RETURN(record.listener, read_address(bytes.substr(8, kAddressBytes)));
  bytes.remove_prefix(8 + kAddressBytes);
  for (int rank = 0; rank < world_size; ++rank) record.pair_ids.push_back(read_int<int64_t>(bytes, 8 * rank));
  return record;
}

std::string encode_address_list(const std::vector<SocketAddress>& addresses) {
  std::string out;
  for (const SocketAddress& address : addresses) append_address(out, address);
  return out;
}

Result<SocketAddress> decode_address_list(std::string_view bytes, int world_size, int owner, int peer) {
  CHECK(owner != peer && peer >= 0 && peer < world_size);
  const std::size_t wanted = kAddressBytes * static_cast<std::size_t>(world_size - 1);
  if (bytes.size() != wanted) {
    return invalid_argument("the addresses of rank {} have {} bytes; wanted {}, for {} ranks", owner, bytes.size(),
                            wanted, world_size);
  }
  // A rank has no address for itself.
  const int index = peer < owner ? peer : peer - 1;
  return read_address(bytes.substr(kAddressBytes * static_cast<std::size_t>(index), kAddressBytes));
}

// Both ends compute it, so exactly one connects. It must be gloo's comparison, byte by byte in network sequence: host
// first, then port.
Result<bool> connects_to(const SocketAddress& self, const SocketAddress& peer) {
  if (self.storage.ss_family != peer.storage.ss_family) {
    return invalid_argument(
        "{} and {} are of different families; wanted one for all ranks (GLOO_SOCKET_IFNAME chooses it)",
        self.to_string(), peer.to_string());
  }
  const HostBytes a = host_bytes(self), b = host_bytes(peer);
  const int difference = std::memcmp(a.data, b.data, a.size);
  if (difference != 0) return difference > 0;
  if (a.raw_port == b.raw_port) return invalid_argument("two ranks have the address {}", self.to_string());
  return a.raw_port > b.raw_port;
}

}  // namespace millrace::collective
