// What `serve` and `stage` do with an etcd:// name (discovery/). They wait as long as it takes, print what for,
// and end at a signal.
//
// Thread safety: the main thread.
#pragma once

#include <signal.h>

#include <memory>
#include <string>

#include "app/options.h"
#include "base/status.h"
#include "discovery/coordinator_locator.h"
#include "discovery/leadership.h"

namespace millrace {

// A name, and whom etcd takes its reader and writer for.
struct DiscoveryName {
  std::string name;
  EtcdUserOptions user;
};

// This server's turn to lead the pipeline whose coordinator is at `control`. Null where the name is empty. kCancelled:
// a signal came; kUnauthenticated, kPermissionDenied: etcd refuses the user.
Result<std::unique_ptr<Leadership>> lead_by_name(const DiscoveryName& name, const std::string& control,
                                                 const sigset_t& signals);

// Where the coordinator is that `join` names; null where `join` is its address.
Result<std::unique_ptr<CoordinatorLocator>> find_by_name(const DiscoveryName& join, const sigset_t& signals);

}  // namespace millrace
