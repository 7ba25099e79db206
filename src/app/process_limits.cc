#include "app/process_limits.h"

#include <sys/resource.h>

#include <algorithm>

#include "http/limits.h"

namespace millrace {

Result<std::size_t> check_process_limits(std::size_t replicas) {
  const std::size_t most = http::Limits{}.connections;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur >> 20 < kLeastAddressSpaceMib) {
    return invalid_argument("this process may have {} MiB of address space; wanted at least {} (ulimit -v)",
                            limit.rlim_cur >> 20, kLeastAddressSpaceMib);
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
