#include "stages/loop/lease.h"

#include <utility>

#include "base/log.h"
#include "stages/stage.h"

namespace millrace::loop {

Lease::Answer Lease::on_welcome(wire::Welcome& message, Status& why) {
  const wire::Peer& self = context_.config.self;
  if (message.stage != self.stage || message.incarnation != self.incarnation) {
    ++context_.counters.stale;
    return Answer::kNothing;
  }
  if (message.refused) {
    why = Status(message.refused->code, message.refused->message);
    if (context_.is_member) {
      LOG_WARNING("{}: the coordinator wants a new incarnation: {}", self.stage, why.message());
      return Answer::kLost;
    }
    // For good, unless the replica is only taken for now.
    if (why.code() != StatusCode::kUnavailable) return Answer::kRefused;
    if (!std::exchange(logged_wait_, true)) LOG_INFO("{}/{}: waits: {}", self.stage, self.replica, why.message());
    last_error_ = why.message();
    return Answer::kNothing;
  }
  last_seen_ms_ = context_.now_ms;
  if (context_.is_member) return Answer::kNothing;  // a repeated Welcome
  if (message.from.session != context_.session) context_.book.clear();
  context_.session = message.from.session;
  context_.is_member = true;
  lease_ms_ = message.lease_ms > 0 ? message.lease_ms : kDefaultLeaseMs;
  logged_wait_ = false;
  if (std::exchange(warned_, false)) LOG_INFO("{}/{}: joined", self.stage, self.replica);
  last_sent_ms_ = context_.now_ms;
  next_ms_ = context_.now_ms;
  return Answer::kJoined;
}

// A loop steps for every heartbeat or more often.
void Lease::compensate_pause() {
  const int64_t gap_ms = context_.now_ms - std::exchange(stepped_ms_, context_.now_ms);
  // At most kHeartbeatMs of it were the sleep between two steps, and count.
  if (gap_ms > 2 * kHeartbeatMs) context_.env.worker->compensate_pause(context_.now_ms, gap_ms - kHeartbeatMs);
  if (!context_.is_member || gap_ms <= lease_ms_ / 2) return;
  last_sent_ms_ += gap_ms, last_seen_ms_ += gap_ms;
  report_soon();
}

void Lease::compensate_cpu_wait() {
  WorkerHost& worker = *context_.env.worker;
  if (worker.standing_ms(context_.now_ms) == 0) return cpu_wait_.restart();
  if (const int64_t waited_ms = cpu_wait_.take_ms(); waited_ms > 0) {
    worker.compensate_pause(context_.now_ms, waited_ms);
  }
}

const char* Lease::lost() const {
  if (!context_.is_member) return nullptr;
  if (context_.now_ms - last_sent_ms_ > lease_ms_) return "no heartbeat could leave for longer than the lease";
  if (context_.now_ms - last_seen_ms_ > kCoordinatorSilentLeases * lease_ms_) return "the coordinator is silent";
  return nullptr;
}

void Lease::lose() {
  if (context_.is_member) ++context_.counters.rejoins;
  context_.is_member = false;
  warned_ = true;
  next_warning_ms_ = context_.now_ms + kNoAnswerMs;
  wire::Peer& self = context_.config.self;
  self.incarnation = context_.env.next_incarnation(self.incarnation);
  next_ms_ = context_.now_ms + kRegisterMs;
}

void Lease::send_registration() {
  const StageLoopConfig& config = context_.config;
  wire::Message message =
      wire::Register{.self = config.self, .reply_to = config.reply_to, .spec_hash = config.spec_hash};
  const Status status = context_.env.coordinator->send(message);  // one that cannot leave now is repeated
  if (!status.ok()) last_error_ = status.message();
  warn_of_silence();
  next_ms_ = context_.now_ms + kRegisterMs;
}

// A coordinator that does not answer is away, or has another key or version: a person may have to do something.
void Lease::warn_of_silence() {
  if (next_warning_ms_ == 0) next_warning_ms_ = context_.now_ms + kNoAnswerMs;
  if (context_.now_ms < next_warning_ms_) return;
  next_warning_ms_ = context_.now_ms + kNoAnswerMs;
  warned_ = true;
  const wire::Peer& self = context_.config.self;
  const std::string why = std::exchange(last_error_, {});
  LOG_WARNING("{}/{}: no answer from the coordinator yet: {}", self.stage, self.replica,
              why.empty() ? "it is connected; does it run this program's version?" : why);
}

void Lease::heartbeat_sent(bool taken) {
  if (taken) last_sent_ms_ = context_.now_ms;
  next_ms_ = context_.now_ms + kHeartbeatMs;
}

}  // namespace millrace::loop
