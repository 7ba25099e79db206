// The NCCL relay: parts in device memory (and, staged, in host memory) from one GPU to another over ncclSend and
// ncclRecv. docs/relay-nccl.md has the protocol, the limits and what was and was not tried.
//
// put() keeps the parts where they lie. A reader connects to the writer over TCP, both make a communicator of two ranks
// once, and the reader asks for frame after frame. One thread a relay does all of it; NCCL and CUDA are never called on
// the caller's thread, except to ask where a part lies.
//
// RelayOptions: listen is a numeric host and a port ("127.0.0.1:0", the default); beyond loopback it needs a secret of
// at least 32 bytes. The GPU is the current device of the thread that makes the relay.
//
// Thread safety: as in relay.h. Owner: the stage's set of relays.
#pragma once

#include <memory>

#include "base/status.h"
#include "nccl/nccl_api.h"
#include "relay/relay.h"

namespace millrace {

// kUnavailable with the reason: no library, no CUDA device, too old an NCCL. kInvalidArgument: an option.
Result<std::unique_ptr<Relay>> make_nccl_relay(const RelayOptions& options);
// For tests: with other libraries.
Result<std::unique_ptr<Relay>> make_nccl_relay_of(const RelayOptions& options, const nccl::Libraries& libraries);

}  // namespace millrace
