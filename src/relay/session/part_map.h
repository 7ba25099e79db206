// PartMap: several parts as one run of bytes, for scattered sends and receives.
//
// Byte `offset` of the run lies in one of the parts; fill() returns where the next bytes are, range by range. Empty
// parts take no place. The map does not keep the parts alive.
//
// Owner: the put or the frame whose bytes it maps (session/put.h, session/channel.h), which keeps the parts alive.
// Thread safety: const functions from any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/shared_bytes.h"

namespace millrace::session {

class PartMap {
 public:
  PartMap() = default;
  void add(std::byte* data, std::size_t size);
  // For sending: nothing is written through the map.
  void add(const SharedBytes& part) { add(const_cast<std::byte*>(part.data()), part.size_bytes()); }

  uint64_t total() const { return total_; }
  // Where [offset, offset + size) lies, as far as `out` has capacity. The range must be inside. Returns the entries
  // filled.
  std::size_t fill(uint64_t offset, uint64_t size, std::span<iovec> out) const;

 private:
  struct Run {
    uint64_t start = 0;  // in the run
    std::byte* data = nullptr;
    std::size_t size = 0;
  };
  std::vector<Run> runs_;
  uint64_t total_ = 0;
};

}  // namespace millrace::session
