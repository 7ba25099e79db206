// Descriptor: describes a put to the reader that gets it. One layout for all backends, with a tail of each one's own.
//
// Fixed, little-endian:
//      0   4  magic "MRLY"
//      4   1  version, 1
//      5   3  zeros
//      8  16  backend, ASCII, padded with zeros
//     24  16  instance: random           (InstanceId)
//     40   8  instance: boot
//     48   4  instance: pid
//     52   4  parts, 1 .. kMaxRelayParts
//     56   8  op, unique inside the instance, not 0
//     64   8  generation: of whatever the backend reuses (a slot); a stale one is refused
//     72   8  bytes of all parts together
//     80   8  XXH3-64 of the parts' sizes, each as 8 bytes: the sizes themselves come with the control message
//     88   4  bytes of the tail, 0 .. kMaxDescriptorTailBytes
//     92   4  zeros
//     96      the tail: the backend's own
//          8  XXH3-64 of everything before
//
// The checksum finds accidents; a process that may write to the control plane could make a descriptor that passes. So a
// backend still looks up what is named, and takes nothing in the tail for true that it cannot check.
//
// Thread safety: values; free functions without state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "relay/instance_id.h"
#include "relay/relay.h"

namespace millrace {

inline constexpr std::size_t kMaxDescriptorTailBytes = 2048;
inline constexpr std::size_t kMaxBackendNameBytes = 16;

struct Descriptor {
  std::string backend;
  InstanceId instance;
  RelayOp op;
  uint64_t generation = 0;
  uint32_t parts = 0;
  uint64_t bytes = 0;
  uint64_t sizes_hash = 0;
  std::string tail;
};

// Fills parts, bytes and sizes_hash.
void describe_sizes(std::span<const std::size_t> sizes, Descriptor& descriptor);
std::vector<std::size_t> part_sizes(std::span<const SharedBytes> parts);

// The fields must be in range (CHECK): they are our own.
std::string encode_descriptor(const Descriptor& descriptor);

// kInvalidArgument for anything that is not exactly a descriptor of `backend`; the message has the value seen and the
// value wanted.
Result<Descriptor> decode_descriptor(std::string_view bytes, std::string_view backend);

// kInvalidArgument where the sizes in a get request are not those of the put.
Status check_sizes(const Descriptor& descriptor, std::span<const std::size_t> sizes);

// decode_descriptor() and check_sizes() of a get.
Result<Descriptor> descriptor_of(const GetRequest& request, std::string_view backend);

}  // namespace millrace
