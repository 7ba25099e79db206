// ProcessLimits: what the system lets this process have, checked before anything is opened: libzmq ends the process
// when it cannot have a descriptor or a thread.
//
// Thread safety: free functions; the main thread, before others start.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace millrace {

// Descriptors that are not for connections of clients: of the process itself, and of each replica of a stage, with its
// sockets, relays and pipes, also while it is started again.
inline constexpr std::size_t kDescriptorsOfProcess = 64;
inline constexpr std::size_t kDescriptorsOfReplica = 32;
inline constexpr std::size_t kLeastConnections = 16;
inline constexpr std::size_t kLeastAddressSpaceMib = 1024;

// Raises the limit of descriptors as far as it goes. Returns how many connections of clients fit beside `replicas`
// replicas of stages, 8192 at most. kInvalidArgument: the limit of descriptors (ulimit -n) or of the address space
// (ulimit -v) is too small to serve at all.
Result<std::size_t> check_process_limits(std::size_t replicas);

}  // namespace millrace
