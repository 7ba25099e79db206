// Which relay carries a payload from one stage to another: the best of those that both ends have, that span the
// distance between them and that carry the kind of memory its parts are in. By reference beats mapped memory, mapped
// memory beats copying; among equals the order is that of kRelayPreference.
//
// Thread safety: pure functions.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "relay/relay.h"
#include "wire/messages.h"

namespace millrace::loop {

using Relays = std::map<std::string, std::shared_ptr<Relay>>;  // by name

enum class Distance : uint8_t { kProcess, kHost, kHosts };
Distance distance(const wire::Peer& a, const wire::Peer& b);

struct ChosenRelay {
  std::string name;
  Relay* relay = nullptr;
  std::string address;  // of the reader
};

// `wanted`: the spec's backend; empty or "auto": the best. kUnavailable: there is none; the message names both ends and
// what they have. kUnsupported: those that there are do not carry memory of the parts' devices.
Result<ChosenRelay> choose_relay(const wire::Peer& from, const wire::Peer& to, const Relays& relays,
                                 const std::string& wanted, std::span<const SharedBytes> parts);

}  // namespace millrace::loop
