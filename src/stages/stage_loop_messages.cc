// What a stage loop does with each message, and its membership.
#include <algorithm>
#include <utility>
#include <variant>

#include "base/log.h"
#include "stages/loop/heartbeat.h"
#include "stages/loop/parts.h"
#include "stages/loop/request_report.h"
#include "stages/stage_loop.h"

namespace millrace {

using Sender = loop::PeerGate::Sender;

void StageLoop::dispatch(wire::Message&& message) {
  std::visit([this](auto&& body) { on(std::forward<decltype(body)>(body)); }, std::move(message));
}

template <typename M>
void StageLoop::on(M&&) {
  ++parts_->context.counters.unexpected;
}

void StageLoop::unpark() {
  parts_->gate.unpark([this](wire::Message message) { dispatch(std::move(message)); });
}

void StageLoop::on(wire::Submit&& message) {
  const Sender sender = parts_->gate.check_coordinator(message.from);
  const ReqId id = message.id;
  if (sender == Sender::kAccepted) return check(id, parts_->intake.on_submit(std::move(message)));
  const std::size_t size_bytes = message.payload.tree.bytes.size();
  // Of a coordinator whose Welcome has not come: messages of two connections have no sequence between them.
  if (sender == Sender::kUnknownYet) parts_->gate.park(std::move(message), size_bytes);
}

void StageLoop::on(wire::ChunkBatch&& message) {
  loop::LoopContext& context = parts_->context;
  if (message.to != context.stage() || !contains(parts_->streams.sources(), message.from.stage)) {
    ++context.counters.misaddressed;
    return;
  }
  // One bad chunk ends its own request; the others of the batch are taken as they are.
  const Sender sender = parts_->gate.check_peer(message.from);
  if (sender == Sender::kAccepted) {
    for (wire::Chunk& chunk : message.chunks) check(chunk.id, parts_->intake.on_chunk(message.from, chunk));
  }
  if (sender != Sender::kUnknownYet) return;
  const std::size_t size_bytes = loop::parked_size(message);
  parts_->gate.park(std::move(message), size_bytes);
}

// Of another stage, or of the coordinator for the client.
void StageLoop::on(wire::AckBatch&& message) {
  const bool client = message.from.stage.empty();
  const Sender sender = client ? parts_->gate.check_coordinator(message.from) : parts_->gate.check_peer(message.from);
  if (sender != Sender::kAccepted || message.to != parts_->context.stage()) return;
  for (const wire::Ack& ack : message.acks) {
    // After the end of a request the last ones come.
    if (loop::LoopRequest* request = parts_->requests.live(ack.id)) {
      check(ack.id, parts_->sender.on_ack(*request, message.from, ack));
    }
    if (ack.repeated) parts_->acks.answer_repeated(message.from, ack);
  }
}

// Of any sender: an abort of an ended request changes nothing, and is acknowledged again.
void StageLoop::on(wire::AbortRequest&& message) { parts_->ends.abort(message.id); }

void StageLoop::on(wire::RequestProbe&& message) {
  // One that is early is not parked: its round is void, and the next one asks again.
  if (parts_->gate.check_coordinator(message.from) != Sender::kAccepted) return;
  parts_->notices.add(wire::Message(loop::report_on(message, parts_->context, parts_->requests, parts_->calls)));
}

void StageLoop::on(wire::AdminRequest&& message) {
  loop::LoopContext& context = parts_->context;
  // Profiles and logs are the process's: one answer of it, whatever its worker is doing.
  const bool is_of_process = message.action == wire::AdminAction::kStartProfile ||
                             message.action == wire::AdminAction::kStopProfile ||
                             message.action == wire::AdminAction::kShowLog;
  if (is_of_process && context.env.admin) return parts_->notices.reply(message.id, context.env.admin(message));
  const uint64_t id = message.id;
  if (parts_->work.add_command(std::move(message))) return;  // the worker replies
  parts_->notices.reply(
      id, error(StatusCode::kResourceExhausted, "{} commands wait for the worker, the limit; try again later",
                loop::kMaxWaitingCommands));
}

// ---- with the coordinator

void StageLoop::on(wire::Welcome&& message) {
  Status why;
  switch (parts_->lease.on_welcome(message, why)) {
    case loop::Lease::Answer::kNothing:
      return;
    case loop::Lease::Answer::kRefused:
      return end(why.with_prefix("the coordinator refused the stage"));
    case loop::Lease::Answer::kLost:
      return lose_lease("it was refused");
    case loop::Lease::Answer::kJoined:
      send_membership();
      unpark();
  }
}

void StageLoop::on(wire::Peers&& message) {
  loop::StageLoopParts& p = *parts_;
  const Sender sender = parts_->gate.check_coordinator(message.from);
  if (sender == Sender::kUnknownYet) return p.gate.park(std::move(message), 0);
  if (sender == Sender::kIgnored || !p.context.book.update(message)) return;  // the same again, or an older one
  // Batches to an incarnation that is gone would be refused for ever; their requests fail below.
  p.outgoing.drop_if([&p](const loop::Outgoing::Receiver& to) {
    return !to.stage.empty() && p.context.book.standing(to.stage, to.replica, to.incarnation) == loop::Standing::kGone;
  });
  p.ends.fail_of_lost_peers();
  if (p.context.env.on_peers) p.context.env.on_peers(message);
  p.lease.report_soon();  // the coordinator waits for the table's number before it relies on what is in it
  p.context.retry_by(p.context.now_ms);
  unpark();
}

void StageLoop::on(wire::Shutdown&& message) {
  loop::LoopContext& context = parts_->context;
  // A late Shutdown of an earlier coordinator must not end the stage of the present one.
  if (!parts_->lease.never_joined() && message.from.session != context.session) {
    ++context.counters.stale;
    return;
  }
  const int64_t until_ms = context.now_ms + std::clamp<int64_t>(message.grace_ms, 0, loop::kMaxGraceMs);
  drain_until_ms_ = std::min(drain_until_ms_.value_or(until_ms), until_ms);
  context.is_draining = true;
  parts_->lease.report_soon();
}

// Called before anything else in every step.
void StageLoop::check_lease() {
  parts_->lease.compensate_pause();
  if (const char* why = parts_->lease.lost()) lose_lease(why);
}

void StageLoop::lose_lease(const char* why) {
  loop::StageLoopParts& p = *parts_;
  // The coordinator has ended these requests, or will when this stage joins as a new incarnation: no answer is owed.
  LOG_WARNING("{}/{}: lost its lease ({}); {} requests dropped, and it joins again", p.context.stage(),
              p.context.config.self.replica, why, p.requests.size());
  p.lease.lose();
  if (p.context.env.on_lease_lost) p.context.env.on_lease_lost();
  p.notices.clear();
  p.outgoing.clear();
  p.ends.drop_all();
  p.work.lose_lease();  // behind the drops: they are not to be computed after a resume
  p.gate.clear();
}

void StageLoop::send_membership() {
  parts_->notices.flush();
  const bool loading = parts_->context.env.worker->state() == loop::WorkerHost::State::kLoading;
  if (std::exchange(is_loading_, loading) && !loading) parts_->lease.report_soon();  // requests wait for it
  if (!parts_->lease.is_due()) return;
  if (!member()) return parts_->lease.send_registration();
  parts_->lease.heartbeat_sent(send_heartbeat());
}

bool StageLoop::send_heartbeat() {
  parts_->lease.compensate_cpu_wait();
  wire::Message message = loop::make_heartbeat(parts_->context, books());
  return parts_->context.env.coordinator->send(message).ok();
}

}  // namespace millrace
