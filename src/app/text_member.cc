#include "app/text_member.h"

#include <algorithm>

#include "base/log.h"
#include "pipeline/spec.h"

namespace millrace {
namespace {

constexpr int kPumpTickMs = 50;
constexpr int kMaxHeardPerTick = 1024;

}  // namespace

Result<std::unique_ptr<TextMember>> TextMember::make(TextMemberPlan plan, const PipelinePlace& place, ZmqContext& zmq) {
  std::unique_ptr<TextMember> member(new TextMember(std::move(plan), place, zmq));
  RETURN_IF_ERROR(member->open());
  return member;
}

TextMember::TextMember(TextMemberPlan plan, const PipelinePlace& place, ZmqContext& zmq)
    : plan_(std::move(plan)), place_(place), zmq_(zmq) {}

TextMember::~TextMember() {
  request_stop();
  wait();
}

Status TextMember::open() {
  const TextSeat& seat = *plan_.seat;
  const auto replica = static_cast<uint32_t>(seat.replica);
  ASSIGN_OR_RETURN(inbox_, bind_inbox(zmq_, place_.inbox(seat.stage, replica, plan_.incarnation), place_.key()));
  // What waits for a leader that is away would be old when it comes: refused instead.
  ASSIGN_OR_RETURN(leader_, place_.connect(zmq_, place_.coordinator(), {.policy = BeforeConnected::kRefuse}));
  link_ = std::make_shared<TextLink>(seat.name, leader_);
  LocalMailbox box = make_local_mailbox();
  to_stage_ = std::move(box.outbox);
  ASSIGN_OR_RETURN(stage_, plan_.make_stage(std::move(box.inbox), link_));
  return ok_status();
}

void TextMember::start() {
  pump_done_.store(false);
  pump_ = std::thread([this] {
    run();
    stage_->request_stop();
    pump_done_.store(true);
  });
}

void TextMember::wait() {
  if (pump_.joinable()) pump_.join();
  if (stage_thread_.joinable()) stage_thread_.join();
}

Status TextMember::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void TextMember::end(End how, Status why) {
  if (end_.load() != End::kNot) return;
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(why);
  }
  end_.store(how);
}

void TextMember::run() {
  next_word_ms_ = monotonic_ms() + kNoAnswerMs;
  while (!stop_.load() && end_.load() == End::kNot) {
    tick(monotonic_ms());
    std::optional<wire::Message> message = inbox_->receive(kPumpTickMs);
    for (int heard = 1; message && end_.load() == End::kNot; ++heard) {
      hear(std::move(*message));
      if (heard == kMaxHeardPerTick) break;
      message = inbox_->receive(0);
    }
  }
}

void TextMember::run_stage() {
  started_ms_ = monotonic_ms();
  stage_done_.store(false);
  stage_thread_ = std::thread([this] {
    stage_->run();
    // By itself: it says why in its own words (SchedulerStage::load_status).
    if (!stop_.load()) end(End::kFailed, internal_error("the {} ended", plan_.seat->name));
    stage_done_.store(true);
  });
}

// ---- what comes in

void TextMember::hear(wire::Message message) {
  if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
    hear(*welcome);
  } else if (const auto* table = std::get_if<wire::Peers>(&message)) {
    hear(*table);
  } else if (const auto* shutdown = std::get_if<wire::Shutdown>(&message)) {
    if (session_ == 0 || shutdown->from.session == session_) end(End::kShutdown, ok_status());
  } else {
    pass_on(std::move(message));
  }
}

void TextMember::hear(const wire::Welcome& message) {
  if (message.stage != plan_.seat->stage || message.incarnation != plan_.incarnation) return;
  if (message.refused && session_ != 0) {
    return end(End::kOver, Status(message.refused->code, message.refused->message));
  }
  if (message.refused && message.refused->code == StatusCode::kUnavailable) {
    if (!std::exchange(told_taken_, true)) LOG_INFO("waits: {}", message.refused->message);
    next_word_ms_ = monotonic_ms() + kNoAnswerMs;
    return;
  }
  if (message.refused) {
    return end(End::kFailed, error(message.refused->code, "the leader refused stage '{}': {}", plan_.seat->stage,
                                   message.refused->message));
  }
  heard_ms_ = monotonic_ms();
  if (session_ != 0) return;  // said twice
  session_ = message.from.session;
  if (message.lease_ms > 0) lease_ms_ = message.lease_ms;
  LOG_INFO("the {} joined {}", plan_.seat->name, place_.coordinator());
}

// The stage runs from the first table on: so its first heartbeat reaches the next stage before anything else does.
void TextMember::hear(const wire::Peers& table) {
  if (session_ == 0 || table.from.session != session_) return;
  heard_ms_ = monotonic_ms();
  if (table.epoch <= epoch_) return;
  const bool first = std::exchange(epoch_, table.epoch) == 0;
  const auto peer = std::find_if(table.peers.begin(), table.peers.end(), [this](const wire::Peer& one) {
    return one.stage == plan_.speaks_to && one.replica == 0;
  });
  aim(peer == table.peers.end() || !peer->up ? nullptr : &*peer);
  if (first) run_stage();
}

void TextMember::aim(const wire::Peer* peer) {
  const wire::Peer wanted = peer != nullptr ? *peer : wire::Peer{};
  if (wanted.endpoint == next_.endpoint && wanted.incarnation == next_.incarnation) return;
  next_ = wanted;
  link_lost_ms_ = 0;
  if (wanted.endpoint.empty()) return link_->aim(nullptr);
  auto outbox = place_.connect(zmq_, wanted.endpoint, OutboxOptions{.policy = BeforeConnected::kKeep, .once = true});
  if (!outbox.ok()) return end(End::kFailed, outbox.status());
  link_->aim(std::move(outbox).value());
}

// A stage that is slow makes us wait, which in turn makes the senders wait.
void TextMember::pass_on(wire::Message message) {
  while (!to_stage_->send(message).ok()) {
    if (stop_.load() || end_.load() != End::kNot) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    tick(monotonic_ms());
  }
}

// ---- what is due

void TextMember::tick(int64_t now_ms) {
  if (session_ == 0) return say_register(now_ms);
  link_->repeat_beat();
  watch_lease(now_ms);
}

void TextMember::say_register(int64_t now_ms) {
  if (now_ms >= next_word_ms_) {
    next_word_ms_ = now_ms + kNoAnswerMs;
    LOG_WARNING("no answer from {} yet: {}", place_.coordinator(),
                not_said_.ok() ? "it hears us; is it of this program's version?" : not_said_.message());
  }
  if (now_ms < next_register_ms_) return;
  next_register_ms_ = now_ms + kRegisterEveryMs;
  const TextSeat& seat = *plan_.seat;
  wire::Register one{.self = place_.self(seat.stage, static_cast<uint32_t>(seat.replica), plan_.incarnation)};
  one.self.endpoint = one.reply_to = inbox_->endpoint();
  one.spec_hash = plan_.identity;
  wire::Message message = std::move(one);
  not_said_ = leader_->send(message);  // what cannot be said now is said again
}

void TextMember::watch_lease(int64_t now_ms) {
  const auto over = [this](const char* why) { end(End::kOver, Status(StatusCode::kUnavailable, why)); };
  if (epoch_ != 0 && now_ms - std::max(link_->beat_left_ms(), started_ms_) > lease_ms_) {
    return over("no heartbeat left for longer than the lease");
  }
  if (now_ms - heard_ms_ > kSilentLeases * lease_ms_) return over("the leader is silent");
  if (!link_->lost()) {
    link_lost_ms_ = 0;
  } else if (link_lost_ms_ == 0) {
    link_lost_ms_ = now_ms;
  } else if (plan_.speaks_to == kCoordinatorStage || now_ms - link_lost_ms_ > kLinkPatienceMs) {
    return over("the connection to the next stage ended");
  }
}

}  // namespace millrace
