// What `serve` and `stage` do with an etcd:// name (discovery/). They wait as long as it takes, print what for,
// and end at a signal.
//
// Thread safety: the main thread.
#pragma once

#include <signal.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "discovery/coordinator_locator.h"
#include "discovery/leadership.h"

namespace millrace {

// This server's turn to lead the pipeline whose coordinator is at `control`. Null where `name` is empty. kCancelled: a
// signal came.
Result<std::unique_ptr<Leadership>> lead_by_name(const std::string& name, const std::string& control,
                                                 const sigset_t& signals);

// Where the coordinator is that `join` names; null where `join` is its address.
Result<std::unique_ptr<CoordinatorLocator>> find_by_name(const std::string& join, const sigset_t& signals);

}  // namespace millrace
