// SessionRelay: a Relay over any channel: what its callers see, its thread, and its end.
//
// close() asks the loop's thread to stop and ends everything meanwhile: the thread notifies the peers, closes the
// transport (which ends what it still does with callers' memory) and is joined. A transport that hangs is abandoned
// with its thread after kRelayCloseMs, and a warning reports it.
//
// Owner: the caller of make_session_relay(). Thread safety: as in relay.h.
#pragma once

#include <functional>
#include <memory>

#include "relay/relay.h"
#include "relay/session/core.h"

namespace millrace::session {

// The channel names the core, which outlives it; its links begin when the loop runs.
using MakeChannel = std::function<Result<std::unique_ptr<Channel>>(Core& core)>;
Result<std::unique_ptr<Relay>> make_session_relay(const RelayOptions& options, const MakeChannel& make);

}  // namespace millrace::session
