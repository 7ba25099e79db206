#include "pipeline/membership.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace millrace {

Membership::Membership(const PipelineSpec& spec, MembershipOptions options, int64_t now_ms)
    : options_(std::move(options)), ticked_ms_(now_ms), table_said_ms_(now_ms) {
  for (const StageSpec& stage : spec.stages) {
    for (uint32_t replica = 0; replica < static_cast<uint32_t>(stage.replicas); ++replica) {
      SeatView seat{.stage = stage.name, .replica = replica, .local = stage.host.empty(), .since_ms = now_ms};
      seat.host = stage.host;
      seat.name = stage.replicas == 1 ? stage.name : fmt::format("{}-{}", stage.name, replica);
      seats_.push_back(std::move(seat));
    }
  }
}

std::optional<std::size_t> Membership::find(const std::string& stage, uint32_t replica) const {
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i].replica == replica && seats_[i].stage == stage) return i;
  }
  return std::nullopt;
}

namespace {

bool is_same_process(const wire::Peer& one, const wire::Peer& other) {
  return one.pid == other.pid && one.boot == other.boot && one.host == other.host && one.pid != 0;
}

}  // namespace

// kUnavailable: it may try again as it is; everything else is for good.
Status Membership::may_register(const wire::Register& message) const {
  const wire::Peer& self = message.self;
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
  if (options_.same_spec) {
    const Status same = options_.same_spec(message.spec_hash, options_.spec_hash);
    if (!same.ok()) return same.with_prefix(fmt::format("stage '{}'", self.stage));
  } else if (message.spec_hash != options_.spec_hash) {
    return error(StatusCode::kConflict,
                 "stage '{}' was started with pipeline {:016x}; the coordinator runs {:016x}: start both with the same "
                 "file",
                 self.stage, message.spec_hash, options_.spec_hash);
  }
  const SeatView& seat = seats_[*index];
  const bool same = seat.up && self.incarnation == seat.peer.incarnation;
  if (same && self.pid == seat.peer.pid && self.endpoint == seat.peer.endpoint) return ok_status();
  if (seat.expected != 0 && self.incarnation != seat.expected) {
    return error(StatusCode::kConflict, "{} is expected with incarnation {}; this is {}", seat.name, seat.expected,
                 self.incarnation);
  }
  // One whose Welcome was lost never knew that it was in; nobody has sent it anything yet.
  const bool never_in = !seat.up && !seat.beaten && self.incarnation == seat.newest && seat.newest != 0;
  if (same || (self.incarnation <= seat.newest && !never_in)) {
    return error(StatusCode::kConflict, "incarnation {} of {} is not newer than {}", self.incarnation, seat.name,
                 seat.newest);
  }
  if (seat.up && !is_same_process(seat.peer, self)) {
    return error(StatusCode::kUnavailable, "{} is taken by a live other one, incarnation {}, process {} on '{}'",
                 seat.name, seat.peer.incarnation, seat.peer.pid, seat.peer.host);
  }
  return ok_status();
}

void Membership::hear(const wire::Register& message, int64_t now_ms) {
  const auto index = find(message.self.stage, message.self.replica);
  if (Status status = may_register(message); !status.ok()) {
    ++counters_.refused;
    if (logged_refusals_.size() >= kMaxLoggedRefusals) logged_refusals_.clear();
    if (logged_refusals_.insert(message.reply_to + status.message()).second) {
      LOG_WARNING("refused stage '{}' from '{}': {}", message.self.stage, message.self.host, status.message());
    }
    if (!index) ++counters_.unknown;
    const wire::Failure why{.code = status.code(), .message = status.message()};
    wire::Welcome refusal{.from = self(), .stage = message.self.stage, .incarnation = message.self.incarnation};
    refusal.refused = why;
    refusal.wire_version = message.wire_version;
    messages_.push_back({.reply_to = message.reply_to, .message = std::move(refusal)});
    return;
  }
  SeatView& seat = seats_[*index];
  // It dropped all that it had when it thought itself out: while this process stood still, say.
  if (seat.up && message.self.incarnation > seat.newest) lose(*index, "it began anew", now_ms, true);
  seat.heard_ms = now_ms;
  seat.silent = false;
  const bool again = seat.up;
  if (!again) {
    seat.up = true;
    seat.peer = message.self;
    seat.peer.up = true;
    seat.reply_to = message.reply_to;
    seat.newest = message.self.incarnation;
    seat.expected = 0;
    seat.status = {.stage = seat.stage, .incarnation = seat.newest, .replica = seat.replica};
    seat.since_ms = now_ms;
    seat.lost_why.clear();
    seat.beaten = false;
    if (!seat.local) {
      LOG_INFO("{} joined from '{}', process {}, at {}", seat.name, seat.peer.host, seat.peer.pid, seat.peer.endpoint);
    }
    events_.push_back({MembershipEvent::Kind::kJoined, *index, seat.newest, ""});
  }
  welcome(*index, seat.reply_to, seat.newest, ok_status());
  if (again) return say_table(*index);
  new_table(now_ms);
}

void Membership::welcome(std::size_t seat, const std::string& reply_to, uint64_t incarnation, const Status& status) {
  wire::Welcome message{.from = self(), .stage = seats_[seat].stage, .incarnation = incarnation};
  message.lease_ms = options_.lease_ms;
  if (!status.ok()) message.refused = wire::Failure{.code = status.code(), .message = status.message()};
  messages_.push_back({.seat = seat, .reply_to = reply_to, .message = std::move(message)});
}

void Membership::hear(const wire::StageStatus& status, int64_t now_ms) {
  const auto index = find(status.stage, status.replica);
  if (!index) {
    ++counters_.unknown;
    return;
  }
  SeatView& seat = seats_[*index];
  if (!seat.up || seat.peer.incarnation != status.incarnation) {
    ++counters_.fenced;
    // It lives and does not know that it is out. Its door is known only while nobody else has come in.
    if (seat.up || seat.newest != status.incarnation || now_ms - seat.fence_told_ms < kFenceNoticeMs) return;
    seat.fence_told_ms = now_ms;
    welcome(*index, seat.reply_to, status.incarnation,
            error(StatusCode::kConflict, "{} lost its lease ({}): register again with a newer incarnation than {}",
                  seat.name, seat.lost_why, seat.newest));
    return;
  }
  if (seat.status.state != status.state) seat.since_ms = now_ms;
  seat.heard_ms = now_ms;
  seat.silent = false;
  seat.beaten = true;
  seat.status = status;
  if (status.state == wire::StageState::kFailed) {
    lose(*index, status.message.empty() ? "it failed" : status.message, now_ms);
  }
}

void Membership::lose(std::size_t index, const std::string& reason, int64_t now_ms, bool anew) {
  SeatView& seat = seats_[index];
  if (!seat.up) return;
  seat.up = false;
  seat.peer.up = false;
  seat.since_ms = now_ms;
  seat.fence_told_ms = now_ms - kFenceNoticeMs;
  seat.lost_why = reason;
  LOG_WARNING("{} is lost: {}", seat.name, reason);
  events_.push_back({MembershipEvent::Kind::kLost, index, seat.peer.incarnation, reason, anew});
  new_table(now_ms);
  seat.lost_epoch = epoch_;
}

void Membership::expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
  if (const auto index = find(stage, replica)) seats_[*index].expected = incarnation;
}

void Membership::down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
                      int64_t now_ms) {
  const auto index = find(stage, replica);
  if (!index || seats_[*index].peer.incarnation != incarnation) return;
  lose(*index, reason, now_ms);
}

void Membership::tick(int64_t now_ms) {
  // Asked every heartbeat or more often; a long gap means that this process itself did not run.
  if (const int64_t gap_ms = now_ms - ticked_ms_; gap_ms > std::min(options_.lease_ms, kSilentMs) / 2) {
    for (SeatView& seat : seats_) seat.heard_ms += gap_ms, seat.since_ms += gap_ms;
  }
  ticked_ms_ = now_ms;
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    SeatView& seat = seats_[i];
    if (!seat.up) continue;
    const int64_t silent_ms = now_ms - seat.heard_ms;
    seat.silent = silent_ms >= kSilentMs;
    if (silent_ms >= options_.lease_ms) {
      lose(i, fmt::format("silent for {} ms", silent_ms), now_ms);
    } else if (seat.status.state == wire::StageState::kStalled && options_.stall_grace_ms > 0 &&
               now_ms - seat.since_ms >= options_.stall_grace_ms) {
      lose(i, seat.status.message.empty() ? "it stands still" : seat.status.message, now_ms);
    }
  }
  if (now_ms - table_said_ms_ < kPeersRepeatMs || epoch_ == 0) return;
  table_said_ms_ = now_ms;
  say_table();
}

void Membership::new_table(int64_t now_ms) {
  ++epoch_;
  table_said_ms_ = now_ms;
  say_table();
}

// To everybody who is up, or to one.
void Membership::say_table(std::optional<std::size_t> only) {
  wire::Peers table{.from = self(), .epoch = epoch_};
  if (!options_.self.stage.empty()) table.peers.push_back(options_.self);
  for (const SeatView& seat : seats_) {
    if (seat.newest != 0) table.peers.push_back(seat.peer);
  }
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (!seats_[i].up || (only && *only != i)) continue;
    messages_.push_back({.seat = i, .reply_to = seats_[i].reply_to, .message = table});
  }
}

std::optional<std::size_t> Membership::admit(const wire::Origin& from) {
  const auto index = find(from.stage, from.replica);
  if (!index) {
    ++counters_.unknown;
    return std::nullopt;
  }
  const SeatView& seat = seats_[*index];
  if (from.session == options_.session && seat.up && seat.peer.incarnation == from.incarnation) return index;
  ++counters_.fenced;
  return std::nullopt;
}

std::vector<MembershipEvent> Membership::take_events() { return std::exchange(events_, {}); }
std::vector<MembershipMessage> Membership::take_messages() { return std::exchange(messages_, {}); }

std::string Membership::why_not_serving(const SeatView& seat) const {
  if (!seat.up && !seat.local) {
    const char* then = seat.lost_why.empty() ? "" : "; ";
    return fmt::format("{}: {}{}awaited from host '{}'", seat.name, seat.lost_why, then, seat.host);
  }
  if (!seat.up) return fmt::format("{}: {}", seat.name, seat.lost_why.empty() ? "starting" : seat.lost_why);
  if (seat.serves()) return "";
  if (seat.silent) return fmt::format("{}: stalled, silent for {} ms", seat.name, ticked_ms_ - seat.heard_ms);
  if (seat.status.state == wire::StageState::kLoading) {
    return fmt::format("{}: {} {:.0f}%", seat.name, seat.status.message.empty() ? "loading" : seat.status.message,
                       seat.status.progress * 100);
  }
  const char* more = seat.status.message.empty() ? "" : ", ";
  return fmt::format("{}: {}{}{}", seat.name, wire::stage_state_name(seat.status.state), more, seat.status.message);
}

}  // namespace millrace
