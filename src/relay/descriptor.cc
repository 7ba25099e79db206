#include "relay/descriptor.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "wire/limits.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is written as it lies in memory");

constexpr char kDescriptorMagic[4] = {'M', 'R', 'L', 'Y'};
constexpr uint8_t kDescriptorVersion = 1;

// The layout of descriptor.h, field by field; the assertion below it sees that the compiler adds no padding.
struct Head {
  char magic[4];
  uint8_t version;
  uint8_t zeros[3];
  char backend[kMaxBackendNameBytes];
  uint8_t random[16];
  uint64_t boot;
  uint32_t pid;
  uint32_t parts;
  uint64_t op;
  uint64_t generation;
  uint64_t bytes;
  uint64_t sizes_hash;
  uint32_t tail_bytes;
  uint32_t zero;
};
static_assert(sizeof(Head) == 96 && sizeof(std::size_t) == sizeof(uint64_t));

constexpr std::size_t kSumBytes = 8;
static_assert(sizeof(Head) + kMaxDescriptorTailBytes + kSumBytes <= wire::kMaxDescriptorBytes);

// The name, up to the first zero; empty where something stands after that.
std::string_view name_of(const Head& head) {
  const std::size_t length = strnlen(head.backend, kMaxBackendNameBytes);
  for (std::size_t i = length; i < kMaxBackendNameBytes; ++i) {
    if (head.backend[i] != 0) return {};
  }
  return {head.backend, length};
}

// In the sequence of what is most likely wrong: other bytes, another version, another relay. The checksum comes later,
// since an unknown version may have it elsewhere.
Status check_head(const Head& head, std::string_view backend) {
  if (std::memcmp(head.magic, kDescriptorMagic, sizeof(kDescriptorMagic)) != 0) {
    return invalid_argument("the descriptor does not begin with \"MRLY\"");
  }
  if (head.version != kDescriptorVersion) {
    return invalid_argument("the descriptor's version is {}; wanted {}", head.version, kDescriptorVersion);
  }
  if (head.zeros[0] != 0 || head.zeros[1] != 0 || head.zeros[2] != 0 || head.zero != 0) {
    return invalid_argument("the descriptor's reserved bytes are not 0");
  }
  // Also "" for a name with bytes behind its end, which no backend has: two descriptors that differ never mean the
  // same.
  if (name_of(head) != backend) return invalid_argument("the descriptor is of another relay; wanted '{}'", backend);
  if (head.parts == 0 || head.parts > kMaxRelayParts) {
    return invalid_argument("the descriptor has {} parts; wanted 1..{}", head.parts, kMaxRelayParts);
  }
  if (head.op == 0) return invalid_argument("the descriptor's op is 0");
  return ok_status();
}

}  // namespace

std::vector<std::size_t> part_sizes(std::span<const SharedBytes> parts) {
  std::vector<std::size_t> sizes;
  sizes.reserve(parts.size());
  for (const SharedBytes& part : parts) sizes.push_back(part.size_bytes());
  return sizes;
}

// The sum may wrap for hostile sizes of a get. SessionRelay::check_total() bounds them one by one, and sizes that come
// by the wire are at most wire::kMaxPartBytes each.
void describe_sizes(std::span<const std::size_t> sizes, Descriptor& descriptor) {
  descriptor.parts = static_cast<uint32_t>(sizes.size());
  descriptor.bytes = 0;
  for (const std::size_t size : sizes) descriptor.bytes += size;
  descriptor.sizes_hash = XXH3_64bits(sizes.data(), sizes.size_bytes());
}

std::string encode_descriptor(const Descriptor& descriptor) {
  // The sizes bound what the other side copies; a tail that is too long is a bug of its backend, not of a peer.
  CHECK(descriptor.backend.size() <= kMaxBackendNameBytes && descriptor.tail.size() <= kMaxDescriptorTailBytes);
  CHECK(descriptor.parts >= 1 && descriptor.parts <= kMaxRelayParts && descriptor.op.value != 0);
  Head head{};
  std::memcpy(head.magic, kDescriptorMagic, sizeof(kDescriptorMagic));
  head.version = kDescriptorVersion;
  std::memcpy(head.backend, descriptor.backend.data(), descriptor.backend.size());
  std::memcpy(head.random, descriptor.instance.random.data(), sizeof(head.random));
  head.boot = descriptor.instance.boot;
  head.pid = descriptor.instance.pid;
  head.parts = descriptor.parts;
  head.op = descriptor.op.value;
  head.generation = descriptor.generation;
  head.bytes = descriptor.bytes;
  head.sizes_hash = descriptor.sizes_hash;
  head.tail_bytes = static_cast<uint32_t>(descriptor.tail.size());
  std::string out(reinterpret_cast<const char*>(&head), sizeof(head));
  out += descriptor.tail;
  const uint64_t sum = XXH3_64bits(out.data(), out.size());
  out.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return out;
}

Result<Descriptor> decode_descriptor(std::string_view bytes, std::string_view backend) {
  if (bytes.size() < sizeof(Head) + kSumBytes || bytes.size() > wire::kMaxDescriptorBytes) {
    return invalid_argument("the descriptor has {} bytes; wanted {}..{}", bytes.size(), sizeof(Head) + kSumBytes,
                            wire::kMaxDescriptorBytes);
  }
  Head head;
  // Copied out, as a descriptor in a message has no alignment.
  std::memcpy(&head, bytes.data(), sizeof(head));
  RETURN_IF_ERROR(check_head(head, backend));
  // First the limit, so that the sum beside it cannot wrap.
  if (head.tail_bytes > kMaxDescriptorTailBytes || bytes.size() != sizeof(Head) + head.tail_bytes + kSumBytes) {
    return invalid_argument("the descriptor has {} bytes; its tail should have {}", bytes.size(), head.tail_bytes);
  }
  uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - kSumBytes, kSumBytes);
  // For damage alone; a backend still looks up what is named, see descriptor.h.
  if (sum != XXH3_64bits(bytes.data(), bytes.size() - kSumBytes)) {
    return invalid_argument("the descriptor's checksum is wrong");
  }
  Descriptor descriptor;
  descriptor.backend = backend;
  std::memcpy(descriptor.instance.random.data(), head.random, sizeof(head.random));
  descriptor.instance.boot = head.boot;
  descriptor.instance.pid = head.pid;
  descriptor.op = RelayOp{head.op};
  descriptor.generation = head.generation;
  descriptor.parts = head.parts;
  descriptor.bytes = head.bytes;
  descriptor.sizes_hash = head.sizes_hash;
  descriptor.tail = bytes.substr(sizeof(Head), head.tail_bytes);
  return descriptor;
}

// The sizes come with the control message, and the memory of the get is made for them: where they are not those of the
// put, nothing is fetched.
Status check_sizes(const Descriptor& descriptor, std::span<const std::size_t> sizes) {
  if (sizes.size() != descriptor.parts) {
    return invalid_argument("the get names {} parts; the put has {}", sizes.size(), descriptor.parts);
  }
  Descriptor requested;
  describe_sizes(sizes, requested);
  if (requested.bytes != descriptor.bytes) {
    return invalid_argument("the get names {} bytes; the put has {}", requested.bytes, descriptor.bytes);
  }
  if (requested.sizes_hash != descriptor.sizes_hash) {
    return invalid_argument("the sizes of the parts in the get are not those of the put");
  }
  return ok_status();
}

Result<Descriptor> descriptor_of(const GetRequest& request, std::string_view backend) {
  ASSIGN_OR_RETURN(Descriptor descriptor, decode_descriptor(request.descriptor, backend));
  RETURN_IF_ERROR(check_sizes(descriptor, request.sizes));
  return descriptor;
}

}  // namespace millrace
