#include "pipeline/stage_outboxes.h"

#include "base/log.h"

namespace millrace {

StageOutboxes::StageOutboxes(CoordinatorEnv& env, const Membership& members)
    : env_(env), members_(members), outboxes_(members.replicas().size()) {}

void StageOutboxes::connect(std::size_t slot) {
  CHECK(slot < outboxes_.size());
  const ReplicaView& replica = members_.replicas()[slot];
  outboxes_[slot] = env_.open(replica.reply_to);
  if (!outboxes_[slot] && replica.reachable) {
    LOG_ERROR("{} cannot be reached at '{}'; trying again whenever it registers", replica.name, replica.reply_to);
  }
}

Status StageOutboxes::send(std::size_t slot, wire::Message& message) {
  CHECK(slot < outboxes_.size());
  if (outboxes_[slot]) return outboxes_[slot]->send(message);
  return error(StatusCode::kUnavailable, "{} is not connected", members_.replicas()[slot].name);
}

void StageOutboxes::send(MembershipMessage& message) {
  // Its first connect failed, perhaps for want of descriptors; it registers again until it is welcome.
  if (message.slot && !outboxes_[*message.slot] && members_.replicas()[*message.slot].up) connect(*message.slot);
  if (!message.slot || !outboxes_[*message.slot]) return send_refusal(message);
  if (Status sent = outboxes_[*message.slot]->send(message.message); !sent.ok()) {
    LOG_WARNING("{}: {}", members_.replicas()[*message.slot].name, sent.to_string());
  }
}

void StageOutboxes::send_refusal(MembershipMessage& message) {
  auto found = refused_.find(message.reply_to);
  if (found == refused_.end()) {
    if (refused_.size() >= kMaxRefusedOutboxes) refused_.clear();
    found = refused_.emplace(message.reply_to, env_.open(message.reply_to)).first;
  }
  if (found->second && found->second->send(message.message).ok()) return;
  if (!found->second) refused_.erase(found);
  LOG_WARNING("could not answer a registration from '{}'", message.reply_to);
}

}  // namespace millrace
