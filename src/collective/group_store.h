// GroupStore: the way into a group, whatever its backend: the options are checked, the trainer's store is connected,
// and this rank has added itself.
//
// Owner: the function that joins a group. Thread safety: one thread.
#pragma once

#include "collective/allowed_hosts.h"
#include "collective/process_group.h"
#include "collective/tcp_store_client.h"

namespace millrace::collective {

struct GroupStore {
  AllowedHosts allowed;
  TcpStoreClient client;
};

// kInvalidArgument names the option.
Status check_group_options(const GroupOptions& options);
// Tries until the limit while nothing listens there.
Result<GroupStore> open_group_store(const GroupOptions& options, const WaitLimit& limit);

}  // namespace millrace::collective
