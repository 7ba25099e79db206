// ProcessLimits: what the system lets this process have, checked before anything is opened: libzmq ends the process
// when it cannot have a descriptor or a thread.
//
// Thread safety: free functions; the main thread, before others start.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "pipeline/stage_processes.h"

namespace millrace {

// Descriptors that are not for connections of clients: of the process itself, and of each replica of a stage, with its
// sockets, relays and pipes, also while it is started again.
inline constexpr std::size_t kDescriptorsOfProcess = 64;
inline constexpr std::size_t kDescriptorsOfReplica = 32;
inline constexpr std::size_t kLeastConnections = 16;
inline constexpr std::size_t kLeastAddressSpaceMib = 1024;
inline constexpr std::size_t kAddressSpaceOfReplicaMib = 256;

// The address space, in MiB, that a process needs which runs `replicas`, whose stages are in `spec`, and the
// coordinator where it leads: kLeastAddressSpaceMib for one of these, kAddressSpaceOfReplicaMib for each further one
// (threads and their heaps), and each one's pool for payloads, which is reserved at the start and takes no memory.
std::size_t address_space_mib(const PipelineSpec& spec, const std::vector<StageReplica>& replicas, bool leads);

// Raises the limit of descriptors as far as it goes. Returns how many connections of clients fit beside `replicas`
// replicas of stages, 8192 at most. kInvalidArgument: the limit of descriptors (ulimit -n) is too
// small to serve at all, or that of the address space (ulimit -v) is below `space_mib`.
Result<std::size_t> check_process_limits(std::size_t replicas, std::size_t space_mib);

}  // namespace millrace
