#include "collective/allowed_hosts.h"

#include <algorithm>

namespace millrace::collective {

Result<AllowedHosts> AllowedHosts::resolve(std::string_view list) {
  AllowedHosts out;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string name(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (name.empty()) continue;
    // Once, at the start: a name that points elsewhere later does not widen the list.
    ASSIGN_OR_RETURN(const std::vector<SocketAddress> found, collective::resolve(name, 0));
    out.addresses_.insert(out.addresses_.end(), found.begin(), found.end());
  }
  return out;
}

Status AllowedHosts::check(const SocketAddress& address) const {
  if (address.loopback()) return ok_status();
  // Without the port: the ranks' listeners have ports that the kernel chose.
  const std::string host = address.host();
  for (const SocketAddress& allowed : addresses_) {
    if (allowed.host() == host) return ok_status();
  }
  return error(StatusCode::kPermissionDenied,
               "{} is not among --trainer-hosts; wanted one of them, or a loopback address", host);
}

}  // namespace millrace::collective
