// UcxLink: one UCX endpoint as a link of the session, and the arenas of the peer's pool that are mapped over it.
//
// Owner: UcxChannel. Thread safety: the loop's thread.
#pragma once

#include <map>

#include "base/clock.h"
#include "relay/ucx/ucx_channel.h"

namespace millrace::ucx {

class UcxLink final : public session::Link {
 public:
  UcxLink(UcxChannel& owner, bool is_incoming) : Link(monotonic_ms()), channel(owner), incoming(is_incoming) {}
  bool ready() const override { return open && !gone; }
  Status send(const session::Header& header, std::span<const std::byte> payload = {}) override {
    return channel.send(*this, header, {reinterpret_cast<const char*>(payload.data()), payload.size()});
  }
  void wake() override { channel.push_soon(*this); }

  struct ArenaMap {
    ucp_rkey_h key = nullptr;
    int users = 0;  // gets that copy from it, or are about to
    Mapped mapped;  // of it, as far as slots were granted
  };

  UcxChannel& channel;
  const bool incoming;  // the peer connected to us: it reads, we write
  InstanceId id;        // all zeros: it has not introduced itself
  ucp_ep_h ep = nullptr;
  bool open = false;              // it has answered
  bool gone = false;              // on its way out; nothing is sent
  Status why;                     // it is gone
  int64_t due_ms = 0;             // to answer at all
  int transfers = 0;              // sends that UCX has not ended: the link stays until they have
  int sending = 0;                // DATA frames of them
  std::size_t control_bytes = 0;  // of control frames that UCX has not sent
  std::map<uint64_t, ArenaMap> arenas;
  ucs_status_ptr_t closing = nullptr;
};

}  // namespace millrace::ucx
