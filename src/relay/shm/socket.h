// The socket of the shared-memory relay: one SOCK_SEQPACKET connection from each reader to each writer it gets from, at
// an abstract address, so no file stands anywhere and the name is gone with its owner. It carries three short messages,
// descriptors once, and then nothing: that it is open is the sign of life.
//
// Only processes of our own effective user are talked to (SO_PEERCRED, on both ends). The abstract name belongs to the
// network namespace: processes that do not share one do not find each other.
//
// Thread safety: free functions without state. Nothing here blocks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "relay/instance_id.h"
#include "relay/shm/layout.h"
#include "relay/shm/shared_memory.h"

namespace millrace::shm {

// "shm:" and 32 hexadecimal digits: Relay::address().
std::string address_of(const InstanceId& id);
// The random part alone; kInvalidArgument for anything else.
Result<InstanceId> parse_address(std::string_view address);

Result<Fd> listen_at(const InstanceId& id);
// An invalid Fd: no peer is waiting, or `code` (an errno) is why accepting must pause.
Fd accept_one(const Fd& listener, int& code);
// kUnavailable: no process listens. kResourceExhausted: its queue is full, or we are out of descriptors; try again.
Result<Fd> connect_to(const InstanceId& id);
// kPermissionDenied unless the process at the other end is of our effective user.
Status check_peer(const Fd& socket);

struct Packet {
  enum class Kind { kNothing, kEnd, kMessage };
  Kind kind = Kind::kNothing;
  std::size_t bytes = 0;  // of a message, also of one that did not fit
  std::vector<Fd> fds;
};
// kEnd stands for an empty packet as well.
// With `takes_fds` up to kMaxFds descriptors that came along, else none; the kernel closes the others.
Packet receive(const Fd& socket, std::span<std::byte> into, bool takes_fds);
// False: it could not be sent whole, at once.
bool send(const Fd& socket, std::span<const std::byte> message, std::span<const int> fds);

template <typename Message>
std::span<const std::byte> bytes_of(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace millrace::shm
