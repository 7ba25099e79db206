#include "pipeline/membership.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace {

Membership::Membership(const PipelineSpec& spec, MembershipOptions options, int64_t now_ms)
    : options_(std::move(options)), ticked_ms_(now_ms), table_sent_ms_(now_ms) {
  for (std::size_t index = 0; index < spec.stages.size(); ++index) {
    const StageSpec& stage = spec.stages[index];
    for (uint32_t replica = 0; replica < static_cast<uint32_t>(stage.replicas); ++replica) {
      ReplicaView member{.stage = stage.name,
                         .replica = replica,
                         .optional = stage.helps(),
                         .local = stage.host.empty(),
                         .since_ms = now_ms};
      member.stage_index = index;
      member.host = stage.host;
      member.name = stage.replicas == 1 ? stage.name : fmt::format("{}-{}", stage.name, replica);
      replicas_.push_back(std::move(member));
    }
  }
}

std::optional<std::size_t> Membership::find(const std::string& stage, uint32_t replica) const {
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i].replica == replica && replicas_[i].stage == stage) return i;
  }
  return std::nullopt;
}

namespace {

bool is_same_process(const wire::Peer& one, const wire::Peer& other) {
  // A pid alone names a process of one boot of one host; 0 is a pid that is not known.
  return one.pid == other.pid && one.boot == other.boot && one.host == other.host && one.pid != 0;
}

}  // namespace

// kUnavailable: it may try again as it is; everything else is for good.
Status Membership::may_register(const wire::Register& message) const {
  const wire::Peer& self = message.self;
  // First: of another version the rest of the message is a guess (read_other_version()).
  if (message.wire_version != wire::kWireVersion) {
    return error(StatusCode::kConflict,
                 "stage '{}' speaks wire version {}; the coordinator speaks {}: start both with the same build",
                 self.stage, message.wire_version, wire::kWireVersion);
  }
  const auto index = find(self.stage, self.replica);
  if (!index) {
    if (!find(self.stage, 0)) {
      return error(StatusCode::kNotFound, "the pipeline has no stage '{}'", self.stage);
    }
    return invalid_argument("replica {} of stage '{}' is not in the pipeline; wanted a lower number", self.replica,
                            self.stage);
  }
  // Before the slot is looked at: a stage of another file would take a slot whose name happens to be the same.
  if (options_.same_spec) {
    const Status same = options_.same_spec(message.spec_hash, options_.spec_hash);
    if (!same.ok()) return same.with_prefix(fmt::format("stage '{}'", self.stage));
  } else if (message.spec_hash != options_.spec_hash) {
    return error(StatusCode::kConflict,
                 "stage '{}' was started with pipeline {:016x}; the coordinator runs {:016x}: start both with the same "
                 "file",
                 self.stage, message.spec_hash, options_.spec_hash);
  }
  const ReplicaView& member = replicas_[*index];
  const bool same = member.up && self.incarnation == member.peer.incarnation;
  // Its Welcome was lost: it registers until one arrives.
  if (same && self.pid == member.peer.pid && self.endpoint == member.peer.endpoint) return ok_status();
  // The supervisor has started a process with this number: a survivor of the one before must not take its slot.
  if (member.expected != 0 && self.incarnation != member.expected) {
    return error(StatusCode::kConflict, "{} is expected with incarnation {}; this is {}", member.name, member.expected,
                 self.incarnation);
  }
  // One whose Welcome was lost never knew that it was a member; no stage has sent it anything yet.
  const bool never_in = !member.up && !member.beaten && self.incarnation == member.newest && member.newest != 0;
  if (same || (self.incarnation <= member.newest && !never_in)) {
    return error(StatusCode::kConflict, "incarnation {} of {} is not newer than {}", self.incarnation, member.name,
                 member.newest);
  }
  // kUnavailable, as the live one may lose its lease: then this one gets in with a later try.
  if (member.up && !is_same_process(member.peer, self)) {
    return error(StatusCode::kUnavailable, "{} is taken by a live other one, incarnation {}, process {} on '{}'",
                 member.name, member.peer.incarnation, member.peer.pid, member.peer.host);
  }
  return ok_status();
}

void Membership::handle(const wire::Register& message, int64_t now_ms) {
  const auto index = find(message.self.stage, message.self.replica);
  if (Status status = may_register(message); !status.ok()) {
    ++counters_.refused;
    // A refused stage tries again and again: each reason is logged once. Cleared and not kept full, so that a new
    // reason is always logged.
    if (logged_refusals_.size() >= kMaxLoggedRefusals) logged_refusals_.clear();
    if (logged_refusals_.insert(message.reply_to + status.message()).second) {
      LOG_WARNING("refused stage '{}' from '{}': {}", message.self.stage, message.self.host, status.message());
    }
    if (!index) ++counters_.unknown;
    if (index && !replicas_[*index].up) replicas_[*index].lost_why = fmt::format("refused: {}", status.message());
    const wire::Failure why{.code = status.code(), .message = status.message()};
    wire::Welcome refusal{.from = self(), .stage = message.self.stage, .incarnation = message.self.incarnation};
    refusal.refused = why;
    // In the version that its reader speaks, or it could not read why.
    refusal.wire_version = message.wire_version;
    messages_.push_back({.reply_to = message.reply_to, .message = std::move(refusal)});
    return;
  }
  ReplicaView& member = replicas_[*index];
  // It dropped its requests when it took itself for lost, for example while this process was stopped.
  if (member.up && message.self.incarnation > member.newest) lose(*index, "it began anew", now_ms, true);
  member.last_seen_ms = now_ms;
  member.silent = false;
  const bool again = member.up;
  // All that was known of the earlier holder goes: its status, and with it which weights it had.
  if (!again) {
    member.up = member.reachable = true;
    member.peer = message.self;
    member.peer.up = true;
    // A Welcome is no readiness: the first heartbeat in the state kReady makes it serve.
    member.peer.serves = false;
    member.reply_to = message.reply_to;
    member.newest = message.self.incarnation;
    member.expected = 0;
    member.status = {.stage = member.stage, .incarnation = member.newest, .replica = member.replica};
    member.since_ms = now_ms;
    member.lost_why.clear();
    member.beaten = false;
    if (!member.local) {
      LOG_INFO("{} joined from '{}', process {}, at {}", member.name, member.peer.host, member.peer.pid,
               member.peer.endpoint);
    }
    events_.push_back({MembershipEvent::Kind::kJoined, *index, member.newest, ""});
  }
  // The Welcome before the table: a stage can do nothing with a table of a session that it has not joined yet.
  welcome(*index, member.reply_to, member.newest, ok_status());
  // No new epoch: nothing has changed for the others.
  if (again) return send_table(*index);
  new_table(now_ms);
}

void Membership::welcome(std::size_t slot, const std::string& reply_to, uint64_t incarnation, const Status& status) {
  wire::Welcome message{.from = self(), .stage = replicas_[slot].stage, .incarnation = incarnation};
  message.lease_ms = options_.lease_ms;
  if (!status.ok()) message.refused = wire::Failure{.code = status.code(), .message = status.message()};
  messages_.push_back({.slot = slot, .reply_to = reply_to, .message = std::move(message)});
}

void Membership::handle(const wire::StageStatus& status, int64_t now_ms) {
  const auto index = find(status.stage, status.replica);
  if (!index) {
    ++counters_.unknown;
    return;
  }
  ReplicaView& member = replicas_[*index];
  if (!member.up || member.peer.incarnation != status.incarnation) {
    ++counters_.fenced;
    // It runs and does not know that it is lost. Its endpoint is known only while no other one has joined.
    // Limited, as a heartbeat comes every few hundred milliseconds and the notice may be on its way.
    if (member.up || member.newest != status.incarnation || now_ms - member.fence_sent_ms < kFenceNoticeMs) return;
    member.fence_sent_ms = now_ms;
    welcome(*index, member.reply_to, status.incarnation,
            error(StatusCode::kConflict, "{} lost its lease ({}): register again with a newer incarnation than {}",
                  member.name, member.lost_why, member.newest));
    return;
  }
  if (member.status.state != status.state) member.since_ms = now_ms;
  member.last_seen_ms = now_ms;
  member.silent = false;
  member.beaten = true;
  member.status = status;
  // Before publish_serving(): the first ready replica sets what itself must have, and serves with this table.
  if (member.is_ready()) learn_checksums(member);
  if (status.state == wire::StageState::kFailed) {
    lose(*index, status.message.empty() ? "it failed" : status.message, now_ms);
  }
  publish_serving(now_ms);
}

// The set of serving replicas changes without a registration: it has loaded, stands still, or waits for other weights.
void Membership::publish_serving(int64_t now_ms) {
  bool changed = false;
  for (ReplicaView& member : replicas_) {
    const bool serves = member.serves();
    changed |= std::exchange(member.peer.serves, serves) != serves && member.up;
  }
  if (changed) new_table(now_ms);
}

void Membership::lose(std::size_t index, const std::string& reason, int64_t now_ms, bool anew) {
  ReplicaView& member = replicas_[index];
  if (!member.up) return;
  member.up = false;
  member.peer.up = member.peer.serves = false;
  member.since_ms = now_ms;
  // The first notice is due at once.
  member.fence_sent_ms = now_ms - kFenceNoticeMs;
  member.lost_why = reason;
  // A process of this host that does not come to serve prints why, on the same terminal, and the supervisor logs its
  // end.
  const wire::StageState state = member.status.state;
  const bool printed = member.local && (state == wire::StageState::kFailed || state == wire::StageState::kLoading);
  MILLRACE_LOG(printed ? LogLevel::kDebug : LogLevel::kWarning, "{} is lost: {}", member.name, reason);
  // Taken by Coordinator::take_membership(), which ends requests: not from here, as tick() walks the replicas.
  events_.push_back({MembershipEvent::Kind::kLost, index, member.peer.incarnation, reason, anew});
  new_table(now_ms);
  // Behind new_table(): this is the number of the table that shows the loss, for which senders_know() waits.
  member.lost_epoch = epoch_;
}

void Membership::expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
  if (const auto index = find(stage, replica)) replicas_[*index].expected = incarnation;
}

void Membership::down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
                      int64_t now_ms) {
  const auto index = find(stage, replica);
  // A death that is reported late must not end the process that was started since.
  if (!index || replicas_[*index].peer.incarnation != incarnation) return;
  lose(*index, reason, now_ms);
}

void Membership::tick(int64_t now_ms) {
  // Asked every heartbeat or more often; a long gap means that this process itself did not run.
  if (const int64_t gap_ms = now_ms - ticked_ms_; gap_ms > std::min(options_.lease_ms, kSilentMs) / 2) {
    // A heartbeat may still wait in the inbox: without the shift a member would be lost for the time in which this
    // process did not read it.
    for (ReplicaView& member : replicas_) {
      // Not into the future: of messages that waited in the inbox, some may have been handled before this tick.
      member.last_seen_ms = std::min(member.last_seen_ms + gap_ms, now_ms);
      member.since_ms = std::min(member.since_ms + gap_ms, now_ms);
    }
  }
  ticked_ms_ = now_ms;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    ReplicaView& member = replicas_[i];
    if (!member.up) continue;
    const int64_t silent_ms = now_ms - member.last_seen_ms;
    // Before the lease where that is longer: nothing new is placed on it, and what it has goes on.
    member.silent = silent_ms >= kSilentMs;
    if (silent_ms >= options_.lease_ms) {
      lose(i, fmt::format("silent for {} ms", silent_ms), now_ms);
    } else if (member.status.state == wire::StageState::kStalled && options_.stall_grace_ms > 0 &&
               now_ms - member.since_ms >= options_.stall_grace_ms) {
      lose(i, member.status.message.empty() ? "it stands still" : member.status.message, now_ms);
    }
  }
  publish_serving(now_ms);
  // Repeated, as the control plane may lose a message; a stage drops what has an epoch that it knows.
  if (now_ms - table_sent_ms_ < kPeersRepeatMs || epoch_ == 0) return;
  table_sent_ms_ = now_ms;
  send_table();
}

void Membership::new_table(int64_t now_ms) {
  ++epoch_;
  table_sent_ms_ = now_ms;
  send_table();
}

// To all members, or to one.
void Membership::send_table(std::optional<std::size_t> only) {
  wire::Peers table{.from = self(), .epoch = epoch_};
  if (!options_.self.stage.empty()) table.peers.push_back(options_.self);
  for (const ReplicaView& member : replicas_) {
    // Also those that are down, with up == false: a sender must learn that, and not only miss an entry.
    if (member.newest != 0) table.peers.push_back(member.peer);
  }
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i].up || (only && *only != i)) continue;
    messages_.push_back({.slot = i, .reply_to = replicas_[i].reply_to, .message = table});
  }
}

std::optional<std::size_t> Membership::current_slot(const wire::Origin& from) {
  const auto index = find(from.stage, from.replica);
  if (!index) {
    ++counters_.unknown;
    return std::nullopt;
  }
  const ReplicaView& member = replicas_[*index];
  if (from.session == options_.session && member.up && member.peer.incarnation == from.incarnation) return index;
  ++counters_.fenced;
  return std::nullopt;
}

std::vector<MembershipEvent> Membership::take_events() { return std::exchange(events_, {}); }
std::vector<MembershipMessage> Membership::take_messages() { return std::exchange(messages_, {}); }

// What the first ready replica of a stage has, the others must have.
void Membership::learn_checksums(const ReplicaView& first) {
  const wire::StageStatus status = first.status;
  const std::size_t stage = first.stage_index;
  const bool weights = status.weights_checksum != 0 && first.weights.checksum == 0 &&
                       (first.weights.version == 0 || first.weights.version == status.weight_version);
  const bool text = status.text_checksum != 0 && first.text_checksum == 0;
  const bool frozen = status.frozen_checksum != 0 && first.frozen_checksum == 0;
  if (!weights && !text && !frozen) return;
  for (ReplicaView& member : replicas_) {
    if (member.stage_index != stage) continue;
    // For each replica of the stage, also one that comes later, as the views stay.
    if (weights) member.weights = {status.weight_version, status.weights_checksum};
    if (text) member.text_checksum = status.text_checksum;
    if (frozen) member.frozen_checksum = status.frozen_checksum;
  }
}

void Membership::require_weights(const std::vector<std::string>& stages, RequiredWeights weights) {
  for (ReplicaView& member : replicas_) {
    if (std::find(stages.begin(), stages.end(), member.stage) == stages.end()) continue;
    member.weights = weights;
    member.next_weights = {};
  }
}

void Membership::accept_weights(const std::vector<std::string>& stages, RequiredWeights next) {
  for (ReplicaView& member : replicas_) {
    if (std::find(stages.begin(), stages.end(), member.stage) != stages.end()) member.next_weights = next;
  }
}

void Membership::note_weights(const std::string& stage, uint32_t replica, std::string note) {
  if (const auto index = find(stage, replica)) replicas_[*index].weights_note = std::move(note);
}

KnownWeights Membership::known_weights() const {
  KnownWeights out;
  for (const ReplicaView& member : replicas_) {
    out.required = std::max(out.required, member.weights.version);
    if (member.up) out.newest = std::max(out.newest, member.status.weight_version);
  }
  return out;
}

std::vector<StaleReplica> Membership::stale() const {
  std::vector<StaleReplica> out;
  for (const ReplicaView& member : replicas_) {
    if (member.is_stale()) out.push_back({member.stage, member.replica, member.weights});
  }
  return out;
}

std::string Membership::why_not_serving(const ReplicaView& member) const {
  if (!member.up && !member.local) {
    const char* then = member.lost_why.empty() ? "" : "; ";
    return fmt::format("{}{}awaited from host '{}'", member.lost_why, then, member.host);
  }
  if (!member.up) return member.lost_why.empty() ? "starting" : member.lost_why;
  if (member.serves()) return "";
  if (!member.reachable) return "no socket to it could be opened; trying again (see the log)";
  if (member.silent) return fmt::format("stalled, silent for {} ms", ticked_ms_ - member.last_seen_ms);
  if (member.status.state == wire::StageState::kLoading) {
    return fmt::format("{} {:.0f}%", member.status.message.empty() ? "loading" : member.status.message,
                       member.status.progress * 100);
  }
  if (member.is_stale()) {
    return fmt::format("stale, has weight version {}; wanted {}: {}", member.status.weight_version,
                       member.weights.version,
                       member.weights_note.empty() ? "it will be updated" : member.weights_note);
  }
  if (member.is_ready() && !member.has_right_weights()) {
    return fmt::format(
        "its weights of version {} have the checksum {:016x}; wanted {:016x}, those that the stage first served: "
        "put the model's files back and restart it, or update the weights",
        member.status.weight_version, member.status.weights_checksum, member.weights.checksum);
  }
  if (member.is_ready() && !member.has_right_frozen()) {
    return fmt::format(
        "its weights that no update changes have the checksum {:016x}; wanted {:016x}, those that the stage first "
        "had: put the model's files back and restart it",
        member.status.frozen_checksum, member.frozen_checksum);
  }
  if (member.is_ready() && !member.has_right_text()) {
    return fmt::format(
        "its model's configuration and tokenizer have the checksum {:016x}; wanted {:016x}, those that the stage "
        "first had: put the files back and restart it",
        member.status.text_checksum, member.text_checksum);
  }
  const char* more = member.status.message.empty() ? "" : ", ";
  return fmt::format("{}{}{}", wire::stage_state_name(member.status.state), more, member.status.message);
}

std::string Membership::why_stage_missing(std::size_t stage_index) const {
  const ReplicaView* first = nullptr;
  for (const ReplicaView& member : replicas_) {
    if (member.stage_index != stage_index) continue;
    if (member.serves()) return "";
    if (first == nullptr) first = &member;
  }
  CHECK(first != nullptr);
  return fmt::format("{}: {}", first->name, why_not_serving(*first));
}

}  // namespace millrace
