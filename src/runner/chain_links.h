// How the ranges of a chain reach each other: each has an inbox, and an outbox to the range behind it; that of the last
// one leads to the first. What starts ranges (processes, hosts, threads of a test) makes these.
//
// Thread safety: values, made at the start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "control/mailbox.h"

namespace millrace {

// The other ranges of a chain, for the first one: those that it must know to be alive.
class RangePeers {
 public:
  virtual ~RangePeers() = default;
  // `lost` is called from any thread when a range has died and lost its KV; `final`: it will not come back.
  using Lost = std::function<void(uint32_t range, const std::string& how, bool final)>;
  virtual void on_lost(Lost lost) = 0;
  // Ends the process of a range that hangs; it is started again, and `lost` is called.
  virtual void restart(uint32_t range) = 0;
  // Whether each range sends LayerAlive while it runs, so that its silence means something.
  virtual bool send_alive() const { return false; }
};

struct ChainLinks {
  std::unique_ptr<Inbox> inbox;
  std::shared_ptr<Outbox> next;
  std::unique_ptr<RangePeers> peers = nullptr;  // null: they never die
};

}  // namespace millrace
