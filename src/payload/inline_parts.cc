#include "payload/inline_parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "payload/packing.h"
#include "wire/limits.h"

namespace millrace {

bool put_inline(const std::vector<SharedBytes>& parts, wire::Payload& payload) {
  std::size_t total = 0;
  bool host = true;
  // Filled also where a relay carries the parts: the receiver gets them by these sizes.
  payload.part_bytes.clear();
  for (const SharedBytes& part : parts) {
    payload.part_bytes.push_back(part.size_bytes());
    total += part.size_bytes();
    host = host && part.device() == Device::kHost;
  }
  // A message is copied by the processor and into every queue on its way, so large parts and device memory go by a
  // relay.
  if (total > wire::kMaxInlineBytes || !host) return false;
  std::string& bytes = payload.inline_bytes.bytes;
  bytes.clear();
  bytes.reserve(total);
  for (const SharedBytes& part : parts) {
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size_bytes());
  }
  return true;
}

// Each part gets a block of its own, because only the start of a block is aligned for every dtype.
Result<Value> restore_inline(const wire::Payload& payload) {
  const std::string& bytes = payload.inline_bytes.bytes;
  std::vector<SharedBytes> parts;
  std::size_t at = 0;
  for (const uint64_t size : payload.part_bytes) {
    // By subtraction: the sizes are a peer's. Nothing is allocated before the bytes are known to be here.
    if (size > bytes.size() - at) {
      return invalid_argument("inline_bytes has {} bytes; wanted {} more for part {}", bytes.size(), size,
                              parts.size());
    }
    Buffer block(size);
    std::memcpy(block.data(), bytes.data() + at, size);
    parts.emplace_back(std::move(block));
    at += size;
  }
  if (at != bytes.size()) return invalid_argument("inline_bytes has {} bytes; wanted {}", bytes.size(), at);
  return restore(payload.tree.bytes, payload.tensors, parts);
}

}  // namespace millrace
