// AddressBook: the replicas of a pipeline as the coordinator's last table of peers has them, and the outboxes to them.
//
// An outbox is made when something is first sent to that replica, and dropped when the replica dies or comes back as
// another incarnation. Incarnations of one replica only grow, so an older one than the table's is gone for ever, and
// one that is newer, or not there at all, is not known yet.
//
// Owner: LoopContext. Thread safety: the loop's thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "control/mailbox.h"
#include "wire/messages.h"

namespace millrace::loop {

using Connect = std::function<Result<std::shared_ptr<Outbox>>(const wire::Peer&)>;

// The receiver of a message.
struct Receiver {
  std::string stage;  // empty: the coordinator
  uint32_t replica = 0;
  uint64_t incarnation = 0;
  auto operator<=>(const Receiver&) const = default;
};

enum class Standing : uint8_t { kMember, kUnknown, kGone };

class AddressBook {
 public:
  explicit AddressBook(Connect connect) : connect_(std::move(connect)) {}

  // False: the table is not newer than the last one.
  bool update(const wire::Peers& table);
  void clear();  // another session

  Standing standing(const std::string& stage, uint32_t replica, uint64_t incarnation) const;
  // nullptr: not in the table.
  const wire::Peer* find(const std::string& stage, uint32_t replica) const;
  // Of a peer in the table. Errors are those of Connect.
  Result<Outbox*> outbox(const wire::Peer& peer);
  uint64_t epoch() const { return epoch_; }

 private:
  struct Entry {
    wire::Peer peer;
    std::shared_ptr<Outbox> outbox;
  };
  Connect connect_;
  uint64_t epoch_ = 0;
  std::map<std::pair<std::string, uint32_t>, Entry> entries_;  // at most wire::kMaxPeers
};

}  // namespace millrace::loop
