// AllowedHosts: the addresses to which a group may connect. A request names a trainer, and the trainer's store names
// the other ranks: without a list, either could make this process open connections into a network that only it reaches.
//
// Owner: the function that joins a group. Thread safety: constant after resolve(), which may block as long as the
// system's resolver does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collective/socket_address.h"

namespace millrace::collective {

class AllowedHosts {
 public:
  // `list`: names or numeric addresses with commas between them. Loopback is always allowed, and with an empty list
  // alone.
  static Result<AllowedHosts> resolve(std::string_view list);
  // kPermissionDenied: it is not among them.
  Status check(const SocketAddress& address) const;

 private:
  std::vector<SocketAddress> addresses_;
};

}  // namespace millrace::collective
