// The relay through shared memory, for stages of one host and one user: put() copies once into memory that its readers
// map, get() hands out those very bytes. docs/relay-shm.md describes the layout and what each process does when another
// one dies.
//
// Owner: the caller that made it. One thread for each instance, which sleeps while nothing is open.
#pragma once

#include <memory>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace {

// Of the options it uses pool_bytes, credits, lease_ms, connect_timeout_ms and silent_ms (for a peer's first message).
// kInvalidArgument: an option; kResourceExhausted: no descriptors or address space; kUnsupported: no memfd or no /proc.
Result<std::unique_ptr<Relay>> make_shm_relay(const RelayOptions& options);

}  // namespace millrace
