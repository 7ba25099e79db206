// The coordinator's stages: members that join and are lost, admin commands, health.
#include <string_view>

#include "base/log.h"
#include "pipeline/coordinator.h"

namespace millrace {
namespace {

// Of a process that is gone: nothing runs or waits there, and it has no pages. What it has counted it has counted.
void forget_gauges(wire::StageStatus& status) {
  status.running = status.waiting = status.pages_total = status.pages_free = status.pages_cached = 0;
  std::erase_if(status.metrics, [](const wire::Metric& metric) {
    return !std::string_view(metric.name).substr(0, metric.name.find('{')).ends_with("_total");
  });
}

// A stage that is up and does not serve reports that it is ready, or nothing at all: the reason is known here alone.
void show_why(const ReplicaView& replica, const std::string& why, wire::StageStatus& status) {
  if (!replica.silent && status.state != wire::StageState::kReady) return;
  const bool will_serve = !replica.reachable || replica.is_stale();
  status.state = replica.silent ? wire::StageState::kStalled
                 : will_serve   ? wire::StageState::kLoading
                                : wire::StageState::kFailed;
  status.message = why;
}

}  // namespace

// For Delivery, a member of this object, so `this` outlives it. A slot is looked up at each call: its holder may be
// another process by then.
ClientWindow::Send Coordinator::ack_sender() {
  return [this](std::size_t slot, std::vector<wire::Ack> acks) {
    wire::Message message = wire::AckBatch{members_.self(), members_.replicas()[slot].stage, std::move(acks)};
    return outboxes_.send(slot, message);
  };
}

// Events before messages: a joined slot needs its outbox before its Welcome is sent.
void Coordinator::take_membership(int64_t now_ms) {
  for (const MembershipEvent& event : members_.take_events()) {
    if (event.kind == MembershipEvent::Kind::kJoined) {
      outboxes_.connect(event.slot);
      // The new holder is asked as well, with the abort's next retry.
      aborts_.on_joined(event.slot);
      env_.joined(members_.replicas()[event.slot]);
    } else {
      on_lost(event, now_ms);
    }
  }
  for (MembershipMessage& message : members_.take_messages()) {
    outboxes_.send(message);
    // Only now: send() may have opened the socket that connect() could not.
    if (message.slot) members_.set_reachable(*message.slot, outboxes_.is_connected(*message.slot));
  }
}

void Coordinator::on_lost(const MembershipEvent& event, int64_t now_ms) {
  const std::size_t slot = event.slot;
  const ReplicaView& view = members_.replicas()[slot];
  const std::size_t stage = view.stage_index;
  // First what is sent there, then what was placed there: an end below must not send an abort to a process that is
  // gone, which never acknowledges it.
  outboxes_.disconnect(slot);
  delivery_.on_lost(slot);
  placement_.forget(slot);
  aborts_.on_lost(slot);
  commands_.on_lost(slot, event.reason);
  // Not each request of the route: what a stage has delivered in full stays good after its loss.
  const auto depends = [&](const LiveRequest& request) {
    return request.route[stage] == slot && graph_.needs(stage, request.answer.open, request.complete_inputs);
  };
  const Status why = error(StatusCode::kUnavailable, "stage '{}': {} stopped: {}", view.stage, view.name, event.reason);
  // Collected first: fail() erases from the table.
  for (const ReqId id : requests_.select(depends)) fail(id, why, now_ms);
  // One that joins again is no reason for a restart: the process lives.
  if (!event.anew) env_.lost(view, event.reason);
}

std::vector<std::size_t> Coordinator::connected(const Placement::Route& route) const {
  std::vector<std::size_t> slots;
  for (const std::size_t slot : route) {
    if (slot != Placement::kNone && outboxes_.is_connected(slot)) slots.push_back(slot);
  }
  return slots;
}

void Coordinator::expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
  members_.expect(stage, replica, incarnation);
}

void Coordinator::down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
                       int64_t now_ms) {
  members_.down(stage, replica, incarnation, reason, now_ms);
  take_membership(now_ms);
}

void Coordinator::admin(PipelineCommand command, AdminCommands::Done done, int64_t now_ms) {
  commands_.begin(std::move(command), std::move(done), now_ms);
}

void Coordinator::shut_down(int64_t grace_ms, bool joined) {
  for (std::size_t slot = 0; slot < members_.replicas().size(); ++slot) {
    if (!outboxes_.is_connected(slot) || (!joined && !members_.replicas()[slot].host.empty())) continue;
    wire::Message message = wire::Shutdown{members_.self(), grace_ms};
    if (Status sent = outboxes_.send(slot, message); !sent.ok()) LOG_WARNING("shutdown: {}", sent.to_string());
  }
}

// Empty: ready, which takes one replica of every stage without which requests are not served.
std::string Coordinator::why_not_ready() const {
  return draining_ ? "shutting down" : placement_.why_missing(~graph_.optional());
}

Health Coordinator::health() const {
  Health health{.reason = why_not_ready(), .stages = {}};
  health.ready = health.reason.empty();
  health.draining = draining_;
  for (const ReplicaView& replica : members_.replicas()) {
    wire::StageStatus& status = health.stages.emplace_back(replica.status);
    status.stage = replica.stage;
    status.replica = replica.replica;
    const std::string why = members_.why_not_serving(replica);
    if (why.empty()) continue;
    // Ready, but not with all: the reason names the missing replicas all the same.
    if (health.ready) health.reason += fmt::format("{}{}: {}", health.reason.empty() ? "" : "; ", replica.name, why);
    if (replica.up) {
      show_why(replica, why, status);
      continue;
    }
    status.state = replica.newest == 0 ? wire::StageState::kLoading : wire::StageState::kFailed;
    status.message = replica.lost_why;
    forget_gauges(status);
  }
  return health;
}

CoordinatorBooks Coordinator::books() const {
  CoordinatorBooks books;
  requests_.add_to(books);
  delivery_.add_to(books);
  books.open_aborts = aborts_.size();
  books.awaited_acks = aborts_.awaited_acks();
  books.aborts_given_up = aborts_.given_up();
  books.lost = lost_requests_.lost();
  books.open_commands = commands_.open();
  books.late += commands_.late();
  books.fenced = members_.counters().fenced;
  books.unknown = unknown_ + members_.counters().unknown;
  return books;
}

std::vector<wire::RouteHop> Coordinator::route_of(ReqId id) const {
  const LiveRequest* request = requests_.find(id);
  return request == nullptr ? std::vector<wire::RouteHop>{} : placement_.hops(request->route);
}

}  // namespace millrace
