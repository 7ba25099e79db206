#include "app/process_limits.h"

#include <sys/resource.h>

#include <algorithm>

#include "http/limits.h"
#include "relay/relay.h"
#include "relay/shm/pool.h"

namespace millrace {

namespace {

std::size_t pool_mib(const RelaySpec& spec) {
  const std::size_t bytes =
      spec.pool_mib > 0 ? static_cast<std::size_t>(spec.pool_mib) << 20 : RelayOptions{}.pool_bytes;
  return ((bytes + shm::kSparePoolBytes) * shm::kSpaceFactor) >> 20;
}

}  // namespace

std::size_t address_space_mib(const PipelineSpec& spec, const std::vector<StageReplica>& replicas, bool leads) {
  std::size_t sum = kLeastAddressSpaceMib + (leads ? pool_mib(spec.relay) : 0);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const StageSpec* stage = spec.find(replicas[i].stage);
    if (stage != nullptr) sum += pool_mib(stage->relay);
    if (leads || i > 0) sum += kAddressSpaceOfReplicaMib;
  }
  return sum;
}

Result<std::size_t> check_process_limits(std::size_t replicas, std::size_t space_mib) {
  const std::size_t most = http::Limits{}.connections;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur >> 20 < space_mib) {
    return invalid_argument(
        "this process may have {} MiB of address space; wanted at least {}, most of it for payloads: raise the limit "
        "(ulimit -v), or give the relays a smaller pool_mib in a pipeline's file",
        limit.rlim_cur >> 20, space_mib);
  }
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t reserved = kDescriptorsOfProcess + kDescriptorsOfReplica * replicas;
  if (limit.rlim_cur < reserved + kLeastConnections) {
    return invalid_argument(
        "this process may open {} files; wanted at least {} for {} stages and {} connections (ulimit -n)",
        limit.rlim_cur, reserved + kLeastConnections, replicas, kLeastConnections);
  }
  return std::min<std::size_t>(most, limit.rlim_cur - reserved);
}

}  // namespace millrace
