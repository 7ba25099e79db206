// StageOutboxes: the coordinator's outboxes to the replicas of all stages. A replica has one from its registration
// until it is lost: a message to a lost replica would reach its successor. Refused registrations are answered through
// outboxes of their own, of which at most kMaxRefusedOutboxes are kept.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/coordinator_env.h"
#include "pipeline/membership.h"

namespace millrace {

inline constexpr std::size_t kMaxRefusedOutboxes = 16;

class StageOutboxes {
 public:
  // Both must outlive it.
  StageOutboxes(CoordinatorEnv& env, const Membership& members);

  // A failure is logged; the next membership message to the slot tries again.
  void connect(std::size_t slot);
  void disconnect(std::size_t slot) { outboxes_[slot].reset(); }
  bool is_connected(std::size_t slot) const { return outboxes_[slot] != nullptr; }
  // kUnavailable: the replica is lost. Otherwise as Outbox::send.
  Status send(std::size_t slot, wire::Message& message);
  // What its owner sends again: a refusal costs nothing.
  void send_once(std::size_t slot, wire::Message message) { (void)send(slot, message).ok(); }
  // A failure is logged, not repeated: the membership sends a Welcome again when the stage registers again, and the
  // table of peers after kPeersRepeatMs.
  void send(MembershipMessage& message);

 private:
  void send_refusal(MembershipMessage& message);

  CoordinatorEnv& env_;
  const Membership& members_;
  std::vector<std::shared_ptr<Outbox>> outboxes_;           // by slot; of a lost replica: null
  std::map<std::string, std::shared_ptr<Outbox>> refused_;  // by endpoint
};

}  // namespace millrace
