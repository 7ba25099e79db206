// The registry: every relay that this program knows, by name; which of them work here, and which one an edge between
// two stages should take. docs/relay.md tells users the same.
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

// kInvalidArgument: no such name (with the known ones). Otherwise whatever the backend says.
Result<std::unique_ptr<Relay>> make_relay(std::string_view name, const RelayOptions& options);

// What one end of an edge says of itself, and what both ends know when they choose.
struct RelayPeer {
  std::string process;              // equal for stages of one process: process_id()
  std::string host;                 // equal where shared memory can be shared: host_id()
  std::vector<std::string> relays;  // that it has
  bool device = false;              // its tensors are in device memory
  bool rdma = false;                // it has an RDMA device: has_rdma()
};

// Random, of this process.
const std::string& process_id();
// Of this host as this user and these namespaces see it: processes of two containers on one host differ.
const std::string& host_id();
bool has_rdma();
// This process, with these relays.
RelayPeer this_peer(std::vector<std::string> relays);

// The best road that both ends have. By `wanted` = "auto":
//   local   in one process
//   nccl    where both ends' tensors are in device memory
//   shm     on one host
//   ucx     where both have RDMA
//   tcp     else
// Any other `wanted` is that one, or kUnsupported that says which end lacks it or why the road is too short; for "auto"
// without a common road, kUnsupported with both lists.
Result<std::string> choose_relay(const RelayPeer& from, const RelayPeer& to, std::string_view wanted = "auto");

}  // namespace millrace
