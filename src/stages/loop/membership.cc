// With the coordinator: registering, the lease, the table of peers, heartbeats, shutdown.
#include <algorithm>

#include "base/log.h"
#include "stages/stage.h"
#include "stages/stage_loop.h"
#include "wire/limits.h"
#include "wire/utf8.h"

namespace millrace {

using loop::kNoWake;
using loop::WorkEvent;

wire::Origin StageLoop::origin() const {
  return {.session = session_,
          .stage = config_.self.stage,
          .replica = config_.self.replica,
          .incarnation = config_.self.incarnation};
}

void StageLoop::on(wire::Welcome&& message) {
  const bool for_us = message.stage == config_.self.stage && message.incarnation == config_.self.incarnation;
  if (!for_us) {
    ++counters_.stale;
    return;
  }
  if (message.refused) {
    const std::string why = message.refused->message;
    // Who joins is refused for good, unless its seat is taken just now; who is a member is told that it is none.
    if (standing_ == Membership::kJoining) {
      if (message.refused->code == StatusCode::kUnavailable) {
        if (!std::exchange(told_waits_, true))
          LOG_INFO("{}/{}: waits: {}", config_.self.stage, config_.self.replica, why);
        unanswered_ = std::move(message.refused->message);
        return;
      }
      return end(error(message.refused->code, "the coordinator refused the stage: {}", why));
    }
    LOG_WARNING("{}: the coordinator wants a new incarnation: {}", config_.self.stage, why);
    return lose_lease("it was refused");
  }
  heard_ms_ = now_ms_;
  if (standing_ == Membership::kMember) return;  // said twice
  if (message.from.session != session_) book_.clear();
  session_ = message.from.session;
  lease_ms_ = message.lease_ms > 0 ? message.lease_ms : loop::kDefaultLeaseMs;
  standing_ = Membership::kMember;
  told_waits_ = false;
  if (std::exchange(worried_, false)) LOG_INFO("{}/{}: joined", config_.self.stage, config_.self.replica);
  beat_left_ms_ = now_ms_;
  next_say_ms_ = now_ms_;
  say_membership();
  unpark();
}

void StageLoop::on(wire::Peers&& message) {
  switch (from_coordinator(message.from)) {
    case Heard::kPark:
      park(std::move(message), 0);
      return;
    case Heard::kIgnore:
      return;
    case Heard::kFine:
      break;
  }
  if (!book_.update(message)) return;  // the same again, or an older one
  outgoing_.drop_if([this](const loop::Outgoing::Receiver& to) {
    return !to.stage.empty() && book_.standing(to.stage, to.replica, to.incarnation) == loop::Standing::kGone;
  });
  watch_peers();
  next_say_ms_ = now_ms_;  // the coordinator waits for the table's number before it relies on what is in it
  retry_ms_ = std::min(retry_ms_, now_ms_);
  unpark();
}

void StageLoop::on(wire::Shutdown&& message) {
  const bool never_member = session_ == 0;
  if (!never_member && message.from.session != session_) {
    ++counters_.stale;
    return;
  }
  const int64_t grace_ms = std::clamp<int64_t>(message.grace_ms, 0, loop::kMaxGraceMs);
  const int64_t until_ms = now_ms_ + grace_ms;
  drain_until_ms_ = drain_until_ms_ ? std::min(*drain_until_ms_, until_ms) : until_ms;
  next_say_ms_ = now_ms_;
}

void StageLoop::on(wire::AdminRequest&& message) {
  const bool profile =
      message.action == wire::AdminAction::kStartProfile || message.action == wire::AdminAction::kStopProfile;
  if (profile && doors_.admin) return reply(message.id, doors_.admin(message));
  const uint64_t id = message.id;
  WorkEvent event{.kind = WorkEvent::Kind::kAdmin, .command = std::move(message)};
  if (doors_.worker->post(event, now_ms_)) return;  // the worker replies
  reply(id, error(StatusCode::kResourceExhausted, "{} events wait for the worker, the limit; try again later",
                  doors_.worker->waiting()));
}

void StageLoop::reply(uint64_t command, const Result<std::string>& text) {
  const std::string message = wire::utf8_repair(text.ok() ? *text : text.status().message());
  notify(wire::Message(wire::AdminReply{.id = command,
                                        .stage = config_.self.stage,
                                        .code = text.ok() ? StatusCode::kOk : text.status().code(),
                                        .message = std::string(wire::utf8_clip(message, wire::kMaxErrorBytes))}));
}

// Called before anything else in every step, so that one that was stopped for long says nothing stale.
void StageLoop::watch_lease() {
  if (standing_ != Membership::kMember) return;
  if (now_ms_ - beat_left_ms_ > lease_ms_) return lose_lease("no heartbeat left for longer than the lease");
  if (now_ms_ - heard_ms_ > loop::kCoordinatorSilentLeases * lease_ms_) lose_lease("the coordinator is silent");
}

void StageLoop::lose_lease(const char* why) {
  LOG_WARNING("{}/{}: lost its lease ({}); {} requests dropped, and it joins again", config_.self.stage,
              config_.self.replica, why, requests_.size());
  if (standing_ == Membership::kMember) ++counters_.rejoins;
  standing_ = Membership::kJoining;
  worried_ = true;
  next_word_ms_ = now_ms_ + loop::kNoAnswerMs;
  notices_.clear();
  outgoing_.clear();
  for (const auto& [id, request] : requests_) {
    request->aborted = false;  // nobody waits for an acknowledgement of this incarnation
    if (request->phase == Request::Phase::kLive) let_go(*request);
  }
  parked_.clear();
  parked_bytes_ = 0;
  config_.self.incarnation = doors_.next_incarnation(config_.self.incarnation);
  next_say_ms_ = now_ms_ + loop::kRegisterMs;
}

void StageLoop::say_membership() {
  flush_notices();
  if (now_ms_ < next_say_ms_) return;
  if (standing_ == Membership::kMember) return heartbeat();
  wire::Message message =
      wire::Register{.self = config_.self, .reply_to = config_.reply_to, .spec_hash = config_.spec_hash};
  // One that cannot be said now is said again.
  const Status status = doors_.coordinator->send(message);
  if (!status.ok()) unanswered_ = status.message();
  worry();
  next_say_ms_ = now_ms_ + loop::kRegisterMs;
}

// A coordinator that does not answer is away, or has another key or version: a person may have to do something.
void StageLoop::worry() {
  if (next_word_ms_ == 0) next_word_ms_ = now_ms_ + loop::kNoAnswerMs;
  if (now_ms_ < next_word_ms_) return;
  next_word_ms_ = now_ms_ + loop::kNoAnswerMs;
  worried_ = true;
  const std::string why = std::exchange(unanswered_, {});
  LOG_WARNING("{}/{}: no answer from the leader yet: {}", config_.self.stage, config_.self.replica,
              why.empty() ? "it hears us; is it of this program's version?" : why);
}

void StageLoop::heartbeat() {
  wire::Message message = status();
  if (doors_.coordinator->send(message).ok()) beat_left_ms_ = now_ms_;
  next_say_ms_ = now_ms_ + kHeartbeatMs;
  last_calls_ = doors_.worker->calls();
}

wire::StageStatus StageLoop::status() const {
  const int64_t standing_ms = doors_.worker->standing_ms(now_ms_);
  const bool stalled = config_.stalled_ms > 0 && standing_ms > config_.stalled_ms;
  const StageLoopBooks books = this->books();
  RelayBooks relays;
  for (const auto& [name, relay] : doors_.relays) {
    const RelayBooks more = relay->books();
    relays.puts += more.puts, relays.gets += more.gets, relays.lent_parts += more.lent_parts;
    relays.held_bytes += more.held_bytes;
  }
  wire::StageStatus status;
  status.stage = config_.self.stage;
  status.replica = config_.self.replica;
  status.incarnation = config_.self.incarnation;
  status.peers_epoch = book_.epoch();
  status.state = stalled ? wire::StageState::kStalled : wire::StageState::kReady;
  if (stalled) status.message = fmt::format("no progress for {} ms; stalled_ms is {}", standing_ms, config_.stalled_ms);
  status.progress = 1;
  if (drain_until_ms_) status.state = wire::StageState::kDraining;
  if (doors_.worker->state() == loop::WorkerHost::State::kLoading) {
    const loop::WorkerLoad::Progress loading = doors_.worker->loading();
    status.state = wire::StageState::kLoading;
    status.message = loading.action;
    status.progress = loading.fraction;
  }
  if (doors_.worker->state() == loop::WorkerHost::State::kFailed) {
    status.state = wire::StageState::kFailed;
    status.message =
        std::string(wire::utf8_clip(wire::utf8_repair(doors_.worker->failure().to_string()), wire::kMaxErrorBytes));
  }
  status.steps = doors_.worker->calls();
  status.running = static_cast<decltype(status.running)>(books.requests);
  status.waiting = static_cast<decltype(status.waiting)>(books.worker_events + doors_.worker->waiting());
  doors_.worker->describe(status);
  const auto add = [&status](const char* name, auto value) {
    status.metrics.push_back({.name = name, .value = static_cast<double>(value)});
  };
  add("stage_requests", books.requests), add("stage_queued_items", books.queued_items);
  add("stage_queued_bytes", books.queued_bytes), add("stage_held_chunks", books.held_chunks);
  add("stage_relay_puts", relays.puts), add("stage_relay_gets", relays.gets);
  add("stage_relay_held_bytes", relays.held_bytes), add("stage_relay_lent_parts", relays.lent_parts);
  const StageLoopCounters& c = counters_;
  add("stage_received_total", c.received), add("stage_finished_total", c.finished);
  add("stage_failed_total", c.failed), add("stage_aborted_total", c.aborted), add("stage_stale_total", c.stale);
  add("stage_strangers_total", c.strangers), add("stage_repeated_total", c.repeated);
  add("stage_late_total", c.late), add("stage_unexpected_total", c.unexpected);
  add("stage_refusals_total", c.refusals), add("stage_rejoins_total", c.rejoins);
  add("stage_chunks_in_total", c.chunks_in), add("stage_chunks_out_total", c.chunks_out);
  add_process_metrics(status);
  return status;
}

// The coordinator's own process tells its numbers by itself.
void StageLoop::add_process_metrics(wire::StageStatus& status) const {
  if (!doors_.process_metrics) return;
  const wire::Peer* coordinator = book_.find(config_.coordinator.stage, config_.coordinator.replica);
  if (!coordinator || loop::distance(config_.self, *coordinator) == loop::Distance::kProcess) return;
  for (wire::Metric& metric : doors_.process_metrics()) status.metrics.push_back(std::move(metric));
}

void StageLoop::notify(Notice notice) {
  if (standing_ != Membership::kMember) return;  // the coordinator has ended the requests of a lost lease itself
  if (notices_.size() >= loop::kMaxNotices) {
    ++counters_.lost_notices;  // the oldest: the coordinator asks again, or its deadline ends the request
    notices_.pop_front();
  }
  notices_.push_back(std::move(notice));
  flush_notices();
}

void StageLoop::flush_notices() {
  while (!notices_.empty()) {
    auto* chunk = std::get_if<wire::Chunk>(&notices_.front());
    const Status status =
        chunk ? outgoing_.append({}, *chunk, 0) : doors_.coordinator->send(std::get<wire::Message>(notices_.front()));
    if (status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kUnavailable) {
      retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
      return;
    }
    if (!status.ok()) LOG_ERROR("{}: a notice cannot be sent: {}", config_.self.stage, status.to_string());
    notices_.pop_front();
  }
}

// After a Shutdown: until the last request has ended, or the grace is over.
void StageLoop::watch_drain() {
  if (!drain_until_ms_ || ended_) return;
  if (requests_.empty() && notices_.empty() && outgoing_.chunks() == 0) return end(ok_status());
  if (now_ms_ < *drain_until_ms_) return;
  for (const auto& [id, request] : requests_) {
    if (request->phase != Request::Phase::kLive) continue;
    fail(*request, error(StatusCode::kUnavailable, "the stage was shut down before the request was done"));
  }
  end(ok_status());
}

void StageLoop::fail_stage(const Status& why) {
  if (standing_ == Membership::kMember) {
    flush();
    heartbeat();
    for (const auto& [id, request] : requests_) {
      if (request->phase == Request::Phase::kLive) fail(*request, why);
    }
  }
  end(why);
}

void StageLoop::leave(const std::string& why) {
  if (ended_) return;
  if (standing_ == Membership::kMember) {
    flush_notices();
    flush();
    wire::StageStatus last = status();
    last.state = wire::StageState::kFailed;
    last.message = why;
    wire::Message message = std::move(last);
    const Status said = doors_.coordinator->send(message);
    if (!said.ok()) LOG_DEBUG("{}: the coordinator does not hear of the end: {}", config_.self.stage, said.to_string());
  }
  end(ok_status());
}

void StageLoop::end(Status why) {
  flush_notices();
  flush();
  ended_ = true;
  end_status_ = std::move(why);
}

}  // namespace millrace
