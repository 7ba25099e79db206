// The coordinator's stages: who is there, who must still let go of an aborted request, who is well.
#include <algorithm>

#include "base/log.h"
#include "pipeline/coordinator.h"

namespace millrace {

std::optional<std::size_t> Coordinator::seat_of(const Placement::Route& route, std::size_t stage) const {
  if (route[stage] == Placement::kNone) return std::nullopt;
  return stages_[stage].first_seat + static_cast<std::size_t>(route[stage]);
}

// A message to a replica that is lost meanwhile would be for its successor: there is no door then.
Status Coordinator::send(std::size_t seat, wire::Message& message) {
  if (outboxes_[seat]) return outboxes_[seat]->send(message);
  return error(StatusCode::kUnavailable, "there is no way to {}", members_.seats()[seat].name);
}

void Coordinator::send_stranger(const MembershipMessage& message) {
  auto found = strangers_.find(message.reply_to);
  if (found == strangers_.end()) {
    if (strangers_.size() >= kMaxStrangers) strangers_.clear();
    found = strangers_.emplace(message.reply_to, doors_.open(message.reply_to)).first;
  }
  wire::Message copy = message.message;
  if (found->second && found->second->send(copy).ok()) return;
  LOG_WARNING("could not answer a registration from '{}'", message.reply_to);
}

void Coordinator::pump_members(int64_t now_ms) {
  for (const MembershipEvent& event : members_.take_events()) {
    if (event.kind == MembershipEvent::Kind::kJoined) {
      joined(event.seat);
    } else {
      lost(event, now_ms);
    }
  }
  for (MembershipMessage& message : members_.take_messages()) {
    if (!message.seat || !outboxes_[*message.seat]) {
      send_stranger(message);
    } else if (Status sent = outboxes_[*message.seat]->send(message.message); !sent.ok()) {
      // Both are said again: a Welcome when the stage registers again, the table after kPeersRepeatMs.
      LOG_WARNING("{}: {}", members_.seats()[*message.seat].name, sent.to_string());
    }
  }
}

void Coordinator::joined(std::size_t seat) {
  outboxes_[seat] = doors_.open(members_.seats()[seat].reply_to);
  if (!outboxes_[seat]) LOG_ERROR("no way to {}: '{}'", members_.seats()[seat].name, members_.seats()[seat].reply_to);
  // Somebody who has not heard of an abort yet may still send the newcomer a part of the request.
  for (auto& [id, open] : aborts_) {
    const bool known = std::find(open.seats.begin(), open.seats.end(), seat) != open.seats.end();
    if (!known && seat_of(open.route, stage_of_seat_[seat]) == seat) open.seats.push_back(seat);
  }
}

void Coordinator::lost(const MembershipEvent& event, int64_t now_ms) {
  const SeatView& view = members_.seats()[event.seat];
  const std::size_t stage = stage_of_seat_[event.seat];
  outboxes_[event.seat].reset();
  acks_.erase(event.seat);
  placement_.forget(stage, view.replica);
  std::vector<ReqId> acknowledged_by_death;
  for (const auto& [id, open] : aborts_) acknowledged_by_death.push_back(id);
  for (const ReqId id : acknowledged_by_death) acknowledged(id, event.seat);
  orders_.lost(event.seat, event.reason);
  std::vector<ReqId> need_it;
  for (const auto& [id, request] : table_) {
    if (seat_of(request->route, stage) != event.seat) continue;
    if (graph_.needs(stage, request->open, request->gathered)) need_it.push_back(id);
  }
  std::sort(need_it.begin(), need_it.end());
  const Status why = error(StatusCode::kUnavailable, "stage '{}': {} stopped: {}", view.stage, view.name, event.reason);
  for (const ReqId id : need_it) fail(id, why, now_ms);
  if (!event.anew) doors_.lost(view, event.reason);
}

void Coordinator::expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
  members_.expect(stage, replica, incarnation);
}

void Coordinator::down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
                       int64_t now_ms) {
  members_.down(stage, replica, incarnation, reason, now_ms);
  pump_members(now_ms);
}

void Coordinator::shut_down(int64_t grace_ms) {
  for (std::size_t seat = 0; seat < outboxes_.size(); ++seat) {
    wire::Message message = wire::Shutdown{members_.self(), grace_ms};
    if (!outboxes_[seat]) continue;
    if (Status sent = send(seat, message); !sent.ok()) LOG_WARNING("shutdown: {}", sent.to_string());
  }
}

// ---- aborts

// Every stage that may hold a part of the request must say that it let go, or be lost.
void Coordinator::open_abort(ReqId id, const Placement::Route& route, int64_t now_ms) {
  doors_.hint_abort(id);
  OpenAbort open{.route = route, .seats = {}};
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const auto seat = seat_of(route, stage);
    if (seat && outboxes_[*seat]) open.seats.push_back(*seat);
  }
  if (open.seats.empty()) return;
  say_abort(id, aborts_.insert_or_assign(id, std::move(open)).first->second, now_ms);
}

void Coordinator::say_abort(ReqId id, OpenAbort& open, int64_t now_ms) {
  open.next_ms = now_ms + kAbortRetryMs;
  ++open.tries;
  for (const std::size_t seat : open.seats) {
    wire::Message message = wire::AbortRequest{id};
    (void)send(seat, message).ok();  // a full inbox: it is said again
  }
}

void Coordinator::retry_aborts(int64_t now_ms) {
  for (auto open = aborts_.begin(); open != aborts_.end();) {
    if (now_ms < open->second.next_ms) {
      ++open;
    } else if (open->second.tries >= kMaxAbortTries) {
      ++counts_.aborts_given_up;
      LOG_ERROR("request {}: {} never acknowledged its abort", open->first.value,
                members_.seats()[open->second.seats.front()].name);
      open = aborts_.erase(open);
    } else {
      say_abort(open->first, open->second, now_ms);
      ++open;
    }
  }
}

void Coordinator::hear(const wire::AbortAck& ack) {
  if (const auto seat = members_.admit(ack.from)) acknowledged(ack.id, *seat);
}

void Coordinator::acknowledged(ReqId id, std::size_t seat) {
  const auto open = aborts_.find(id);
  if (open == aborts_.end()) return;
  std::erase(open->second.seats, seat);
  if (open->second.seats.empty()) aborts_.erase(open);
}

// ---- health

// Empty: ready, which takes one replica of every stage.
std::string Coordinator::why_not_ready() const {
  if (draining_) return "shutting down";
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (!any_serves(stage)) return members_.why_not_serving(members_.seats()[stages_[stage].first_seat]);
  }
  return "";
}

PipelineHealth Coordinator::health() const {
  PipelineHealth health{.reason = why_not_ready(), .stages = {}};
  health.ready = health.reason.empty();
  health.draining = draining_;
  for (const SeatView& seat : members_.seats()) {
    wire::StageStatus& status = health.stages.emplace_back(seat.status);
    status.stage = seat.stage;
    status.replica = seat.replica;
    const std::string why = members_.why_not_serving(seat);
    if (why.empty()) continue;
    // Ready, but not with all: who is down is said all the same.
    if (health.ready) health.reason += (health.reason.empty() ? "" : "; ") + why;
    if (seat.silent) status.state = wire::StageState::kStalled, status.message = why;
    if (seat.up) continue;
    status.state = seat.newest == 0 ? wire::StageState::kLoading : wire::StageState::kFailed;
    status.message = seat.lost_why;
  }
  return health;
}

CoordinatorBooks Coordinator::books() const {
  CoordinatorBooks books = counts_;
  books.live = table_.size();
  books.pending = unsent_.size();
  books.open_aborts = aborts_.size();
  for (const auto& [id, open] : aborts_) books.awaited_acks += open.seats.size();
  books.open_orders = orders_.open();
  books.fenced = members_.counters().fenced;
  books.unknown += members_.counters().unknown;
  return books;
}

}  // namespace millrace
