// The registry: every relay that this program knows, by name, and which of them work here. Which one an edge takes is
// chosen by stages/loop/relay_choice.h. docs/relay.md describes both for users.
//
// Thread safety: free functions, from any thread; list_relays() and make_relay() may load libraries.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace {

// "local", "shm", "tcp", "ucx", "nccl", "nixl", "mooncake": the order in which they are listed.
std::vector<std::string> relay_names();

struct RelayInfo {
  std::string name;
  bool available = false;
  std::string reason;              // why not
  RelayCapabilities capabilities;  // where available
};

// Makes a small one of each, for a moment, to see. `options` as for make_relay(); pool and credits are our own.
std::vector<RelayInfo> list_relays(const RelayOptions& options = {});

// kInvalidArgument: no such name (with the known ones). Otherwise the error of the backend.
Result<std::unique_ptr<Relay>> make_relay(std::string_view name, const RelayOptions& options);

// Of this host as this user and these namespaces see it: processes of two containers on one host differ. Equal where
// shared memory can be shared.
const std::string& host_id();

}  // namespace millrace
