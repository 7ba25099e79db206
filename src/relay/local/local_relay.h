// The local relay: stages of one process pass references. get() hands out the very bytes that were put, host or device
// alike; no stage can write them, because SharedBytes gives no writable pointer. Only a get() with destinations copies,
// and for that the memory must be the host's.
//
// All local relays of a process find each other in one table of offers, by their instance's random id. A descriptor of
// another process names an instance that is not in the table, and is refused.
//
// Thread safety: as in relay.h. One thread of its own, for leases and deadlines.
#pragma once

#include <memory>

#include "relay/relay.h"

namespace millrace {

Result<std::unique_ptr<Relay>> make_local_relay(const RelayOptions& options);

}  // namespace millrace
