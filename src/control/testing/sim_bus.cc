#include "control/testing/sim_bus.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <variant>

#include "base/rng.h"
#include "wire/codec.h"

namespace millrace {
namespace {

using LinkName = std::pair<std::string, std::string>;
constexpr uint64_t kImmortal = 0;  // the incarnation of a sender without an inbox

// FNV-1a: the same everywhere.
uint64_t hash_of(const LinkName& link) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3u; };
  for (const char c : link.first) add(static_cast<unsigned char>(c));
  add(0);
  for (const char c : link.second) add(static_cast<unsigned char>(c));
  return hash;
}

class SimWaker final : public Waker {
 public:
  void wake() override { woken = true; }
  bool woken = false;
};

struct Node {
  uint64_t incarnation = 0;
  bool alive = false;
  bool paused = false;
  int64_t died_ms = 0;
  std::size_t in_flight = 0;  // to this incarnation
  std::deque<wire::Message> queue;
  std::shared_ptr<SimWaker> waker;
};

struct Link {
  std::optional<SimLink> rules;
  std::optional<int64_t> cut_ms;  // since when
  uint64_t messages = 0;          // so far
  int64_t last_arrival_ms = 0;    // of those that keep the order
};

struct Flight {
  LinkName link;
  uint64_t incarnation;  // of the receiver it was sent to
  std::variant<std::string, wire::Message> message;
};

}  // namespace

struct SimBus::State {
  explicit State(const SimOptions& chosen) : options(chosen) {}

  SimOptions options;
  SimLink default_link;
  SimCounters counters;
  int64_t now_ms = 0;
  uint64_t next_incarnation = 1;
  uint64_t next_flight = 0;
  std::map<std::string, Node> nodes;
  std::map<LinkName, Link> links;
  std::map<std::pair<int64_t, uint64_t>, Flight> flights;  // by arrival, then by sending

  Status send(const LinkName& name, uint64_t sender, wire::Message& message);
  void fly(const LinkName& name, Link& link, uint64_t incarnation, std::variant<std::string, wire::Message> message);
  void launch(const LinkName& name, Link& link, uint64_t incarnation, int64_t delay_ms, bool ordered,
              std::variant<std::string, wire::Message> message);
  void arrive(Flight flight);
  void kill(const std::string& name);
  bool is_alive(const std::string& name, uint64_t incarnation) const {
    const auto found = nodes.find(name);
    return found != nodes.end() && found->second.alive && found->second.incarnation == incarnation;
  }
  Status refuse(StatusCode code, std::string why) {
    ++counters.refused;
    return Status(code, std::move(why));
  }
};

Status SimBus::State::send(const LinkName& name, uint64_t sender, wire::Message& message) {
  if (sender != kImmortal && !is_alive(name.first, sender)) {
    return refuse(StatusCode::kUnavailable, fmt::format("{} is dead", name.first));
  }
  const auto found = nodes.find(name.second);
  if (found == nodes.end()) return refuse(StatusCode::kUnavailable, fmt::format("{} does not exist", name.second));
  Node& target = found->second;
  Link& link = links[name];
  const bool gone = !target.alive && now_ms >= target.died_ms + options.notice_ms;
  const bool cut_off = link.cut_ms && now_ms >= *link.cut_ms + options.notice_ms;
  if (gone || cut_off) return refuse(StatusCode::kUnavailable, fmt::format("{} is not reached", name.second));
  if (target.queue.size() + target.in_flight >= options.capacity) {
    return refuse(StatusCode::kResourceExhausted, fmt::format("{} takes no more messages now", name.second));
  }
  if (options.through_codec) {
    Result<std::string> frame = wire::encode(message);
    if (!frame.ok()) {
      ++counters.refused;
      return frame.status();
    }
    fly(name, link, target.incarnation, std::move(frame).value());
    message = {};  // moved from, as everywhere
  } else {
    fly(name, link, target.incarnation, std::move(message));
  }
  ++counters.sent;
  return ok_status();
}

void SimBus::State::fly(const LinkName& name, Link& link, uint64_t incarnation,
                        std::variant<std::string, wire::Message> message) {
  const SimLink& rules = link.rules ? *link.rules : default_link;
  // Two blocks of random words a message, so that its fate depends on nothing that befell another.
  const uint64_t stream = hash_of(name);
  const PhiloxBlock fate = philox(options.seed, 2 * link.messages, stream);
  const PhiloxBlock more = philox(options.seed, 2 * link.messages + 1, stream);
  ++link.messages;
  const auto delay = [&](uint32_t word) {
    return rules.min_delay_ms +
           static_cast<int64_t>(
               word % static_cast<uint64_t>(std::max<int64_t>(0, rules.max_delay_ms - rules.min_delay_ms) + 1));
  };
  if (link.cut_ms) {
    ++counters.lost_partition;
    return;
  }
  if (uniform_open(fate[0]) < rules.drop) {
    ++counters.dropped;
    return;
  }
  const bool again = uniform_open(fate[1]) < rules.duplicate;
  const bool late = uniform_open(fate[2]) < rules.reorder;
  int64_t first_delay = delay(fate[3]);
  if (late) {
    ++counters.reordered;
    first_delay += 1 + static_cast<int64_t>(more[1] % static_cast<uint64_t>(std::max<int64_t>(1, rules.reorder_ms)));
  }
  if (again) {
    ++counters.duplicated;
    launch(name, link, incarnation, first_delay, !late, message);
    launch(name, link, incarnation, delay(more[0]), !late, std::move(message));
  } else {
    launch(name, link, incarnation, first_delay, !late, std::move(message));
  }
}

void SimBus::State::launch(const LinkName& name, Link& link, uint64_t incarnation, int64_t delay_ms, bool ordered,
                           std::variant<std::string, wire::Message> message) {
  int64_t arrival_ms = now_ms + delay_ms;
  if (ordered) arrival_ms = link.last_arrival_ms = std::max(arrival_ms, link.last_arrival_ms);
  flights.emplace(std::pair(arrival_ms, next_flight++), Flight{name, incarnation, std::move(message)});
  ++nodes[name.second].in_flight;
  ++counters.in_flight;
}

void SimBus::State::arrive(Flight flight) {
  --counters.in_flight;
  Node& node = nodes[flight.link.second];
  const bool same = node.incarnation == flight.incarnation;
  if (same) --node.in_flight;
  if (links[flight.link].cut_ms) {
    ++counters.lost_partition;
  } else if (!same || !node.alive) {
    ++counters.lost_dead;
  } else if (auto* frame = std::get_if<std::string>(&flight.message)) {
    Result<wire::Message> message = wire::decode(*frame);
    CHECK(message.ok());  // our own encoder made it
    node.queue.push_back(std::move(message).value());
    ++counters.queued;
  } else {
    node.queue.push_back(std::get<wire::Message>(std::move(flight.message)));
    ++counters.queued;
  }
}

void SimBus::State::kill(const std::string& name) {
  const auto found = nodes.find(name);
  if (found == nodes.end() || !found->second.alive) return;
  Node& node = found->second;
  node.alive = false;
  node.paused = false;
  node.died_ms = now_ms;
  counters.lost_dead += node.queue.size();
  counters.queued -= node.queue.size();
  node.queue.clear();
}

namespace {

template <typename State>
class SimInbox final : public Inbox {
 public:
  SimInbox(std::shared_ptr<State> state, std::string name, uint64_t incarnation)
      : state_(std::move(state)), name_(std::move(name)), incarnation_(incarnation) {}
  ~SimInbox() override {
    if (state_->is_alive(name_, incarnation_)) state_->kill(name_);
  }

  std::optional<wire::Message> receive(int) override {
    if (!state_->is_alive(name_, incarnation_)) return std::nullopt;
    Node& node = state_->nodes.at(name_);
    if (node.paused || node.queue.empty()) return std::nullopt;
    wire::Message message = std::move(node.queue.front());
    node.queue.pop_front();
    --state_->counters.queued;
    ++state_->counters.received;
    return message;
  }
  std::shared_ptr<Waker> waker() override {
    if (!state_->is_alive(name_, incarnation_)) return std::make_shared<SimWaker>();
    return state_->nodes.at(name_).waker;
  }

 private:
  std::shared_ptr<State> state_;
  const std::string name_;
  const uint64_t incarnation_;
};

template <typename State>
class SimOutbox final : public Outbox {
 public:
  SimOutbox(std::shared_ptr<State> state, LinkName link, uint64_t sender)
      : state_(std::move(state)), link_(std::move(link)), sender_(sender) {}
  Status send(wire::Message& message) override { return state_->send(link_, sender_, message); }

 private:
  std::shared_ptr<State> state_;
  const LinkName link_;
  const uint64_t sender_;
};

}  // namespace

SimBus::SimBus(const SimOptions& options) : state_(std::make_shared<State>(options)) {}
SimBus::~SimBus() = default;

Result<std::unique_ptr<Inbox>> SimBus::inbox(const std::string& name) {
  Node& node = state_->nodes[name];
  if (node.alive) return error(StatusCode::kConflict, "{} lives; wanted a name that is not in use", name);
  node = Node{.incarnation = state_->next_incarnation++, .alive = true, .waker = std::make_shared<SimWaker>()};
  return std::unique_ptr<Inbox>(std::make_unique<SimInbox<State>>(state_, name, node.incarnation));
}

std::shared_ptr<Outbox> SimBus::outbox(const std::string& from, const std::string& to) {
  const auto found = state_->nodes.find(from);
  const uint64_t sender = found == state_->nodes.end() ? kImmortal : found->second.incarnation;
  return std::make_shared<SimOutbox<State>>(state_, LinkName(from, to), sender);
}

void SimBus::set_default_link(const SimLink& link) { state_->default_link = link; }
void SimBus::set_link(const std::string& from, const std::string& to, const SimLink& link) {
  state_->links[{from, to}].rules = link;
}

void SimBus::cut(const std::string& from, const std::string& to) {
  Link& link = state_->links[{from, to}];
  if (!link.cut_ms) link.cut_ms = state_->now_ms;
}
void SimBus::heal(const std::string& from, const std::string& to) { state_->links[{from, to}].cut_ms.reset(); }

void SimBus::pause(const std::string& name) {
  if (alive(name)) state_->nodes.at(name).paused = true;
}
void SimBus::resume(const std::string& name) {
  if (alive(name)) state_->nodes.at(name).paused = false;
}
void SimBus::kill(const std::string& name) { state_->kill(name); }

bool SimBus::alive(const std::string& name) const {
  const auto found = state_->nodes.find(name);
  return found != state_->nodes.end() && found->second.alive;
}

void SimBus::advance(int64_t ms) {
  CHECK(ms >= 0);
  State& s = *state_;
  const int64_t until_ms = s.now_ms + ms;
  while (!s.flights.empty() && s.flights.begin()->first.first <= until_ms) {
    s.now_ms = std::max(s.now_ms, s.flights.begin()->first.first);
    Flight flight = std::move(s.flights.begin()->second);
    s.flights.erase(s.flights.begin());
    s.arrive(std::move(flight));
  }
  s.now_ms = until_ms;
}

int64_t SimBus::now_ms() const { return state_->now_ms; }

std::optional<int64_t> SimBus::next_arrival_ms() const {
  if (state_->flights.empty()) return std::nullopt;
  return state_->flights.begin()->first.first;
}

bool SimBus::take_wake(const std::string& name) {
  return alive(name) && std::exchange(state_->nodes.at(name).waker->woken, false);
}

SimCounters SimBus::counters() const { return state_->counters; }

}  // namespace millrace
