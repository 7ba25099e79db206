// The TCP relay: puts stay where they are, and readers pull them over TCP. docs/relay-tcp.md has the protocol byte by
// byte, the handshake and the limits.
//
// put() copies nothing: the parts are sent from where they lie when a reader asks. The reader receives them straight
// into its own memory, checks the XXH3-64 of each frame and releases the put, which is over then. One thread for each
// instance does all of it.
//
// RelayOptions: listen is a numeric host and a port ("127.0.0.1:0", which is the default, or "[::1]:7000"); beyond
// loopback it needs a secret of at least 32 bytes, which all peers share. Bytes are authenticated at the handshake and
// checksummed; they are not encrypted.
//
// Thread safety: as in relay.h. Owner: the stage's set of relays.
#pragma once

#include <memory>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace {

// kInvalidArgument: an option. kConflict: the port is taken.
Result<std::unique_ptr<Relay>> make_tcp_relay(const RelayOptions& options);

}  // namespace millrace
