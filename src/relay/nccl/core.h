// Core: what the links of one NCCL relay share: its options, its table of open puts and gets, and what is offered.
//
// Thread safety: all functions from any thread. Owner: the relay and its links together, because a link whose driver
// hangs is left behind.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "relay/descriptor.h"
#include "relay/instance_id.h"
#include "relay/nccl/layout.h"
#include "relay/nccl/nccl_api.h"
#include "relay/op_table.h"
#include "relay/session/secret.h"
#include "relay/tcp/address.h"

namespace millrace::nccl {

// What a reader asks for, or what is offered to it.
struct PutName {
  RelayOp op;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  uint64_t sizes_hash = 0;
};

struct Offer {
  PutName name;
  std::shared_ptr<const Layout> layout;
  std::string destination;
  int unclaimed = 0;   // gets that may still come
  int unreleased = 0;  // gets, made or to come, that did not let go
};

class Core {
 public:
  Core(const RelayOptions& options, const Api& api, int device);

  void offer(Offer offer);
  // A reader begins: what it may read, or why not (kInvalidArgument).
  Result<std::shared_ptr<const Layout>> claim(const PutName& name, const std::string& reader);
  // It is over: with all bytes, the put may have ended; without, another get may come.
  void release(RelayOp put, bool has_all);
  uint64_t generation_of(RelayOp op) const;

  const RelayOptions options;
  const Api& api;
  const int device;
  const InstanceId instance = make_instance_id();
  const uint64_t key;        // of the instance, as frames say it
  tcp::SocketAddress bound;  // set before the first link
  std::string address;       // "
  OpTable table;

 private:
  std::mutex mutex_;
  std::map<RelayOp, Offer> offers_;
};

// The 64 bits of an instance that travel in frames.
uint64_t key_of(const InstanceId& instance);

}  // namespace millrace::nccl
