// How much memory this process may have: of the machine, and of the control groups that it is in (versions 1 and 2),
// which containers and services are given.
//
// Thread safety: a free function.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

struct MemoryInfo {
  uint64_t total_bytes = 0;      // never more, whatever others free; with what can be swapped out
  uint64_t available_bytes = 0;  // now: free or reclaimable, within what every group has left
};

// `root` stands before /proc and /sys: empty, but in tests.
MemoryInfo memory_info(const std::string& root = "");

}  // namespace millrace
