#include "stages/stage_loop.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "stages/loop/heartbeat.h"
#include "stages/loop/parts.h"

namespace millrace {

using loop::kNoWake;

Result<std::unique_ptr<StageLoop>> StageLoop::make(StageLoopConfig config, const Library& library, StageLoopEnv env) {
  CHECK(env.coordinator && env.connect && env.worker);
  const StageSpec& spec = config.spec;
  Result<loop::LoopRules> rules = loop::LoopRules::find(spec, library);
  RETURN_IF_ERROR(rules.status().with_prefix(spec.name));
  if (spec.terminal != spec.next.empty() && spec.takes_payloads()) {
    return invalid_argument("stage '{}' is {}a terminal and has {} next stages; wanted one or the other", spec.name,
                            spec.terminal ? "" : "not ", spec.next.size());
  }
  if (!env.wake) env.wake = [] {};
  if (!env.next_incarnation) env.next_incarnation = [](uint64_t last) { return last + 1; };
  config.self.relays.clear();
  for (const auto& [name, relay] : env.relays) {
    config.self.relays.push_back({.relay = name, .address = {relay->address()}});
  }
  config.self.up = true;
  auto parts = std::make_unique<loop::StageLoopParts>(std::move(config), std::move(rules).value(), std::move(env));
  return std::unique_ptr<StageLoop>(new StageLoop(std::move(parts)));
}

StageLoop::StageLoop(std::unique_ptr<loop::StageLoopParts> parts) : parts_(std::move(parts)) {}

// Puts and gets are cancelled with the parts; the worker is not called any more.
StageLoop::~StageLoop() { parts_->context.env.worker->close(); }

bool StageLoop::member() const { return parts_->context.is_member; }
uint64_t StageLoop::incarnation() const { return parts_->context.config.self.incarnation; }
const StageLoopCounters& StageLoop::counters() const { return parts_->context.counters; }
StageLoopBooks StageLoop::books() const { return parts_->books(); }

// ---- steps

void StageLoop::handle(wire::Message message, int64_t now_ms) {
  parts_->context.now_ms = std::max(parts_->context.now_ms, now_ms);
  if (ended_) return;
  check_lease();
  dispatch(std::move(message));
  run_rounds();
}

int64_t StageLoop::tick(int64_t now_ms) {
  loop::StageLoopParts& p = *parts_;
  p.context.now_ms = std::max(p.context.now_ms, now_ms);
  if (ended_) return kNoWake;
  // The lease before all else: of an incarnation that has lost it nothing may leave.
  check_lease();
  send_membership();
  const int64_t worker_ms = p.context.env.worker->run(p.context.now_ms);
  run_rounds();
  // After the outputs: a request whose result is here in time does not fail.
  p.ends.fail_overdue();
  p.requests.tombstones().expire(p.context.now_ms);
  p.gate.expire();
  if (p.context.now_ms >= p.context.retry_ms) retry();
  p.acks.tick();
  run_rounds();
  // Notices first: they join the batch to the coordinator, which flush() sends.
  p.notices.flush();
  flush();
  check_drain();
  if (ended_) return kNoWake;
  if (p.context.more_to_do || worker_ms <= p.context.now_ms) return p.context.now_ms;
  return std::max(std::min(worker_ms, next_due_ms()), p.context.now_ms + 1);
}

int64_t StageLoop::next_due_ms() const {
  const loop::StageLoopParts& p = *parts_;
  const int64_t deadline_ms = p.requests.next_deadline_ms();
  return std::min({p.context.retry_ms, p.acks.due_ms(), p.lease.due_ms(), p.requests.tombstones().due_ms(),
                   p.gate.due_ms(), drain_due_ms(),
                   deadline_ms == kNoWake ? kNoWake : deadline_ms + loop::kDeadlineGraceMs});
}

// Takes what the relays and the worker have, and what follows from it; after kMaxRoundsPerStep the rest is left to the
// next step.
void StageLoop::run_rounds() {
  loop::StageLoopParts& p = *parts_;
  p.context.more_to_do = true;
  for (int round = 0; round < loop::kMaxRoundsPerStep && p.context.more_to_do; ++round) {
    p.context.more_to_do = false;
    take_relay_ends();
    take_outputs();
    p.ends.sweep();
  }
}

void StageLoop::check(ReqId id, const Status& status) {
  if (status.ok()) return;
  if (loop::LoopRequest* request = parts_->requests.live(id)) parts_->ends.fail(*request, status);
}

void StageLoop::take_relay_ends() {
  loop::StageLoopParts& p = *parts_;
  p.call_ends.clear();
  p.calls.collect(p.call_ends);
  if (p.call_ends.empty()) return;
  p.context.more_to_do = true;
  for (loop::CallEnd& end : p.call_ends) {
    if (end.purpose.kind == loop::CallPurpose::Kind::kDrain) {
      p.fetches.drain_ended();
      continue;
    }
    loop::LoopRequest* request = p.requests.find(end.purpose.request);
    CHECK(request);  // a request stays until its calls have ended
    if (p.sender.waiting_edges() + p.fetches.waiting() > 0) p.context.retry_ms = p.context.now_ms;
    p.requests.check(*request);
    if (request->is_live()) check(request->id, take_relay_end(*request, end));
  }
}

Status StageLoop::take_relay_end(loop::LoopRequest& request, loop::CallEnd& end) {
  if (end.purpose.kind == loop::CallPurpose::Kind::kPut) return parts_->sender.put_ended(request, end);
  return parts_->intake.on_fetched(request, end);
}

void StageLoop::take_outputs() {
  loop::StageLoopParts& p = *parts_;
  using Kind = loop::WorkOutput::Kind;
  p.context.env.worker->collect(p.outputs);
  if (p.outputs.empty()) return;
  p.context.more_to_do = true;
  if (p.work.waiting_requests() > 0) p.context.retry_by(p.context.now_ms);
  for (loop::WorkOutput& output : p.outputs) {
    // Outputs for requests that are gone find nothing: the worker may not know of the end yet.
    if (output.kind == Kind::kCrash) {
      p.ends.fail_worker_requests(*output.error);
    } else if (output.kind == Kind::kReply) {
      p.notices.reply(output.reply->command, output.reply->text, output.reply->weights);
    } else if (loop::LoopRequest* request = p.requests.find(output.id)) {
      const bool is_chunk = output.kind == Kind::kChunk;
      check(output.id, is_chunk ? p.router.route(*request, output) : p.router.end(*request, output));
    }
  }
  p.outputs.clear();
}

// What became of the batches that were tried.
void StageLoop::take_sent() {
  loop::StageLoopParts& p = *parts_;
  for (const loop::Outgoing::Sent& batch : p.outgoing.take_results()) {
    // Failures alone, which no request waits for: without this line their loss would show nowhere.
    if (batch.ids.empty() && !batch.status.ok() && batch.status.code() != StatusCode::kUnavailable) {
      const std::string& to = batch.receiver.stage;
      LOG_ERROR("{}: a batch to '{}' cannot be sent: {}", p.context.stage(), to, batch.status.to_string());
    }
    for (const ReqId id : batch.ids) {
      if (loop::LoopRequest* request = p.requests.live(id)) check(id, p.sender.on_sent(batch, *request));
    }
  }
}

// Everything that was refused, in the order of waiting. What is refused again waits for the next time.
void StageLoop::retry() {
  loop::StageLoopParts& p = *parts_;
  p.context.retry_ms = kNoWake;
  p.outgoing.retry();
  take_sent();
  p.notices.flush();
  for (const auto& [id, target] : p.sender.take_waiting()) {
    if (loop::LoopRequest* request = p.requests.live(id)) check(id, p.sender.retry(*request, target));
  }
  for (loop::Fetches::Waiting& get : p.fetches.take_waiting()) {
    const ReqId id = get.purpose.request;
    if (loop::LoopRequest* request = p.requests.live(id)) check(id, p.intake.retry(*request, std::move(get)));
  }
  p.work.retry();
}

// At the end of a step: all that it has made leaves, and what follows from that.
void StageLoop::flush() {
  loop::StageLoopParts& p = *parts_;
  for (int round = 0; round < loop::kMaxRoundsPerStep; ++round) {
    p.outgoing.flush();
    take_sent();
    if (p.outgoing.any_held()) p.context.retry_soon();
    const bool more = p.outgoing.any_open();
    p.ends.sweep();
    if (!more) return;
  }
  p.context.more_to_do = true;
}

// ---- the end

// It is idle so long before it leaves.
constexpr int64_t kLingerMs = 2000;

void StageLoop::drain(int64_t now_ms, int64_t limit_ms) {
  parts_->context.now_ms = std::max(parts_->context.now_ms, now_ms);
  const int64_t until_ms = parts_->context.now_ms + std::clamp<int64_t>(limit_ms, 0, loop::kMaxGraceMs);
  drain_until_ms_ = std::min(drain_until_ms_.value_or(until_ms), until_ms);
  leaves_ = true;
  parts_->context.env.worker->drain();
}

// After a Shutdown or a drain(): until the last request has ended and nothing is held, or the grace is over. While it
// holds something for others, it is one of the pipeline for them: so it reports that it ends only after that.
void StageLoop::check_drain() {
  loop::StageLoopParts& p = *parts_;
  if (!drain_until_ms_ || ended_) return;
  const bool over = p.context.now_ms >= *drain_until_ms_;
  if (!over && p.context.env.worker->holds()) return;
  if (!p.context.is_draining) {
    p.context.is_draining = true;
    p.lease.report_soon();
  }
  const bool idle = p.requests.empty() && p.notices.empty() && p.outgoing.chunks() == 0;
  if (!idle || idle_since_ms_ == 0) idle_since_ms_ = p.context.now_ms;
  if (!idle && !over) return;
  // Answers of its last requests are on their way through other stages, and requests that were sent to it meanwhile on
  // theirs: a coordinator that loses it fails both.
  if (leaves_ && !over && p.context.now_ms - idle_since_ms_ < kLingerMs) return;
  if (!idle) {
    p.ends.fail_all(error(StatusCode::kUnavailable, "the stage was shut down before the request was done"));
  }
  leaves_ ? leave("it was stopped") : end(ok_status());
}

// What the worker holds ends without an event, and so does the time in which it is idle.
int64_t StageLoop::drain_due_ms() const {
  if (!drain_until_ms_) return kNoWake;
  const loop::StageLoopParts& p = *parts_;
  return std::min(*drain_until_ms_, p.context.now_ms + loop::kDrainPollMs);
}

void StageLoop::fail_stage(const Status& why) {
  if (member()) {
    flush();
    send_heartbeat();
    parts_->ends.fail_all(why);
  }
  end(why);
}

void StageLoop::leave(const std::string& why) {
  if (ended_) return;
  if (member()) {
    parts_->notices.flush();
    flush();
    wire::StageStatus last = loop::make_heartbeat(parts_->context, books());
    last.state = wire::StageState::kFailed;
    last.message = why;
    wire::Message message = std::move(last);
    const Status sent = parts_->context.env.coordinator->send(message);
    if (!sent.ok()) LOG_DEBUG("{}: the last heartbeat is lost: {}", parts_->context.stage(), sent.to_string());
  }
  end(ok_status());
}

void StageLoop::end(Status why) {
  parts_->notices.flush();
  flush();
  ended_ = true;
  end_status_ = std::move(why);
}

}  // namespace millrace
