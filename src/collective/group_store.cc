#include "collective/group_store.h"

#include "collective/limits.h"

namespace millrace::collective {

Status check_group_options(const GroupOptions& options) {
  if (options.world_size < 2 || options.world_size > kMaxWorldSize) {
    return invalid_argument("world_size is {}; wanted 2 to {}", options.world_size, kMaxWorldSize);
  }
  if (options.rank < 1 || options.rank >= options.world_size) {
    return invalid_argument("the rank is {}; wanted 1 to {}: rank 0 is the trainer's", options.rank,
                            options.world_size - 1);
  }
  // The name is a part of each key; the store's keys are bounded by kMaxStoreKeyBytes, and it stands in them twice.
  if (options.name.empty() || options.name.size() > kMaxGroupNameBytes) {
    return invalid_argument("group_name has {} bytes; wanted 1 to {}", options.name.size(), kMaxGroupNameBytes);
  }
  if (options.port == 0) return invalid_argument("master_port is 0; wanted the port of the trainer's TCPStore");
  return ok_status();
}

Result<GroupStore> open_group_store(const GroupOptions& options, const WaitLimit& limit) {
  ASSIGN_OR_RETURN(AllowedHosts allowed, AllowedHosts::resolve(options.allowed_hosts));
  ASSIGN_OR_RETURN(TcpStoreClient client, TcpStoreClient::connect(options.address, options.port, allowed, limit));
  // The store's owner waits at its start until so many have added themselves.
  ASSIGN_OR_RETURN([[maybe_unused]] const int64_t joined, client.add("init/", 1, limit));
  return GroupStore{std::move(allowed), std::move(client)};
}

}  // namespace millrace::collective
