#include "app/text_leader.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/log.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int kMaxHeardPerTick = 256;
constexpr int64_t kGoodbyeMs = 2000;  // that members get to go at the end

uint64_t random_session() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;  // 0 means none
}

std::string told(const TextSeat& seat, const std::string& why) {
  return seat.remote() ? fmt::format("{}; awaited from host '{}'", why, seat.host) : why;
}

}  // namespace

Result<std::unique_ptr<TextLeader>> TextLeader::make(const PipelineSpec& spec, const TextPlan& plan,
                                                     const PipelinePlace& place, ZmqContext& zmq, TextIdentity identity,
                                                     wire::Peer self, TextLeaderEvents events) {
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq, place.coordinator(), place.key()));
  // A stage that stands still is slow or hangs; which of both it is, the front decides (FrontOptions::restart_after_s).
  MembershipOptions options{.session = random_session(), .stall_grace_ms = 0, .self = std::move(self)};
  PipelineSpec seats = spec;
  for (StageSpec& stage : seats.stages) {
    if (stage.name == plan.seats.front().stage) stage.replicas = plan.schedulers();  // --dp
  }
  return std::unique_ptr<TextLeader>(new TextLeader(plan, place, zmq, identity, std::move(inbox),
                                                    Membership(seats, options, monotonic_ms()), std::move(events)));
}

TextLeader::TextLeader(const TextPlan& plan, const PipelinePlace& place, ZmqContext& zmq, TextIdentity identity,
                       std::unique_ptr<Inbox> inbox, Membership members, TextLeaderEvents events)
    : plan_(plan),
      place_(place),
      zmq_(zmq),
      events_(std::move(events)),
      inbox_(std::move(inbox)),
      identity_(identity),
      members_(std::move(members)),
      outboxes_(members_.seats().size()) {}

TextLeader::~TextLeader() { stop(); }

void TextLeader::start() {
  thread_ = std::thread([this] { run(); });
}

void TextLeader::stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void TextLeader::expect(const TextSeat& seat, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  orders_.push_back({.seat = &seat, .incarnation = incarnation});
}

void TextLeader::down(const TextSeat& seat, std::optional<uint64_t> incarnation, std::string why) {
  std::lock_guard lock(mutex_);
  orders_.push_back({.seat = &seat, .incarnation = incarnation, .down = std::move(why)});
}

const TextSeat& TextLeader::seat_at(std::size_t index) const {
  const SeatView& view = members_.seats()[index];
  const TextSeat* seat = plan_.find(view.stage, view.replica);
  CHECK(seat != nullptr);
  return *seat;
}

void TextLeader::run() {
  while (!stop_.load()) {
    std::optional<wire::Message> message = inbox_->receive(kLeaderTickMs);
    obey();  // before what is heard: a child is expected before it can speak
    for (int heard = 1; message; ++heard) {
      hear(std::move(*message));
      pump();
      if (heard == kMaxHeardPerTick) break;
      message = inbox_->receive(0);
    }
    watch_links();
    members_.tick(monotonic_ms());
    pump();
  }
  for (const std::shared_ptr<Outbox>& outbox : outboxes_) {
    wire::Message message = wire::Shutdown{members_.self(), kLeaderGraceMs};
    if (outbox && !outbox->send(message).ok()) LOG_WARNING("a stage could not be told that its leader ends");
  }
  // Until they have heard it and ended their connections: closing ours could be sooner than the word.
  const auto all_gone = [this] {
    return std::all_of(outboxes_.begin(), outboxes_.end(),
                       [](const auto& outbox) { return !outbox || outbox->lost(); });
  };
  for (const int64_t end_ms = monotonic_ms() + kGoodbyeMs; !all_gone() && monotonic_ms() < end_ms;) {
    (void)inbox_->receive(kLeaderTickMs);
  }
}

// ---- what others of this process order

void TextLeader::obey() {
  std::vector<Order> orders;
  {
    std::lock_guard lock(mutex_);
    orders.swap(orders_);
  }
  for (const Order& order : orders) {
    const TextSeat& seat = *order.seat;
    const auto replica = static_cast<uint32_t>(seat.replica);
    const auto index = members_.find(seat.stage, replica);
    if (!index) continue;
    if (order.down.empty()) {
      members_.expect(seat.stage, replica, *order.incarnation);
      continue;
    }
    const SeatView& view = members_.seats()[*index];
    if (!view.up && !order.incarnation) continue;
    if (!view.up) events_.lost(seat, told(seat, order.down));  // it never came so far
    members_.down(seat.stage, replica, order.incarnation.value_or(view.peer.incarnation), order.down, monotonic_ms());
    pump();
  }
}

// ---- what comes in

void TextLeader::hear(wire::Message message) {
  if (auto* one = std::get_if<wire::Register>(&message)) {
    hear(std::move(*one));
  } else if (auto* status = std::get_if<wire::StageStatus>(&message)) {
    hear(std::move(*status));
  } else {
    LOG_WARNING("ignored a message of type {}: it is not for the leader", message.index());
  }
}

// All but what the membership itself looks at.
Status TextLeader::may_join(const wire::Register& message) const {
  const TextSeat* seat = plan_.find(message.self.stage, message.self.replica);
  if (seat != nullptr && seat->here()) {
    return invalid_argument("stage '{}' runs in the leader's own process; wanted one with a host", seat->stage);
  }
  return same_identity(TextIdentity::unpack(message.spec_hash), identity_);
}

void TextLeader::refuse(const wire::Register& message, const Status& why) {
  wire::Welcome refusal{.from = members_.self(), .stage = message.self.stage, .incarnation = message.self.incarnation};
  refusal.refused = wire::Failure{.code = why.code(), .message = why.message()};
  say({.reply_to = message.reply_to, .message = std::move(refusal)});
}

void TextLeader::hear(wire::Register message) {
  if (const Status status = may_join(message); !status.ok()) {
    LOG_WARNING("refused stage '{}' from '{}': {}", message.self.stage, message.self.host, status.message());
    return refuse(message, status);
  }
  if (identity_.weights == 0) identity_.weights = TextIdentity::unpack(message.spec_hash).weights;
  message.spec_hash = 0;  // compared
  members_.hear(message, monotonic_ms());
}

// By its name for people; the membership knows stages by those of the spec.
void TextLeader::hear(wire::StageStatus status) {
  const TextSeat* seat = plan_.find(status.stage);
  if (seat == nullptr) return;
  wire::StageStatus known = status;
  known.stage = seat->stage;
  known.replica = static_cast<uint32_t>(seat->replica);
  members_.hear(known, monotonic_ms());
  const auto index = members_.find(known.stage, known.replica);
  if (!index) return;
  const SeatView& view = members_.seats()[*index];
  if (view.up && view.peer.incarnation == status.incarnation) events_.beat(std::move(status));
}

// ---- the members

void TextLeader::watch_links() {
  for (std::size_t i = 0; i < outboxes_.size(); ++i) {
    if (!outboxes_[i] || !outboxes_[i]->lost()) continue;
    const SeatView& view = members_.seats()[i];
    members_.down(view.stage, view.replica, view.peer.incarnation, "the connection to it ended", monotonic_ms());
  }
}

void TextLeader::pump() {
  for (const MembershipEvent& event : members_.take_events()) {
    if (event.kind == MembershipEvent::Kind::kJoined) {
      joined(event.seat, event.incarnation);
    } else {
      lost(event.seat, event.reason);
    }
  }
  for (const MembershipMessage& message : members_.take_messages()) say(message);
}

void TextLeader::joined(std::size_t index, uint64_t incarnation) {
  const SeatView& view = members_.seats()[index];
  auto outbox = place_.connect(zmq_, view.reply_to, OutboxOptions{.policy = BeforeConnected::kKeep, .once = true});
  if (!outbox.ok()) {
    // It holds its seat until the lease ends, and is told nothing.
    LOG_ERROR("no way to {}: {}", view.name, outbox.status().message());
    return;
  }
  const TextSeat& seat = seat_at(index);
  LOG_INFO("the {} joined from '{}', process {}, at {}", seat.name, view.peer.host, view.peer.pid, view.peer.endpoint);
  outboxes_[index] = std::move(outbox).value();
  events_.joined(seat, incarnation, outboxes_[index]);
}

void TextLeader::lost(std::size_t index, const std::string& why) {
  outboxes_[index].reset();
  const TextSeat& seat = seat_at(index);
  events_.lost(seat, told(seat, why));
}

void TextLeader::say(const MembershipMessage& message) {
  wire::Message copy = message.message;
  if (message.seat && outboxes_[*message.seat]) {
    // Both are said again: a Welcome when the stage registers again, the table after kPeersRepeatMs.
    const Status sent = outboxes_[*message.seat]->send(copy);
    if (!sent.ok()) LOG_WARNING("{}: {}", members_.seats()[*message.seat].name, sent.to_string());
    return;
  }
  auto found = strangers_.find(message.reply_to);
  if (found == strangers_.end()) {
    if (strangers_.size() >= kMaxStrangerDoors) strangers_.clear();
    auto outbox = place_.connect(zmq_, message.reply_to);
    if (!outbox.ok()) {
      LOG_WARNING("could not answer a registration from '{}': {}", message.reply_to, outbox.status().message());
      return;
    }
    found = strangers_.emplace(message.reply_to, std::move(outbox).value()).first;
  }
  if (!found->second->send(copy).ok()) LOG_WARNING("could not answer a registration from '{}'", message.reply_to);
}

}  // namespace millrace
