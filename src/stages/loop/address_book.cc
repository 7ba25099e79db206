#include "stages/loop/address_book.h"

#include "wire/limits.h"

namespace millrace::loop {

bool AddressBook::update(const wire::Peers& table) {
  if (table.epoch <= epoch_ || table.peers.size() > wire::kMaxPeers) return false;
  epoch_ = table.epoch;
  std::map<std::pair<std::string, uint32_t>, Entry> entries;
  for (const wire::Peer& peer : table.peers) {
    Entry& entry = entries[{peer.stage, peer.replica}];
    entry.peer = peer;
    const auto before = entries_.find({peer.stage, peer.replica});
    if (before == entries_.end() || !peer.up) continue;
    const wire::Peer& old = before->second.peer;
    if (old.incarnation == peer.incarnation && old.endpoint == peer.endpoint) entry.outbox = before->second.outbox;
  }
  entries_ = std::move(entries);
  return true;
}

void AddressBook::clear() {
  epoch_ = 0;
  entries_.clear();
}

Standing AddressBook::standing(const std::string& stage, uint32_t replica, uint64_t incarnation) const {
  const wire::Peer* peer = find(stage, replica);
  if (!peer || peer->incarnation < incarnation) return Standing::kUnknown;
  return peer->incarnation == incarnation && peer->up ? Standing::kMember : Standing::kGone;
}

const wire::Peer* AddressBook::find(const std::string& stage, uint32_t replica) const {
  const auto entry = entries_.find({stage, replica});
  return entry == entries_.end() ? nullptr : &entry->second.peer;
}

Result<Outbox*> AddressBook::outbox(const wire::Peer& peer) {
  Entry& entry = entries_.at({peer.stage, peer.replica});
  if (!entry.outbox) {
    ASSIGN_OR_RETURN(entry.outbox, connect_(entry.peer));
  }
  return entry.outbox.get();
}

}  // namespace millrace::loop
