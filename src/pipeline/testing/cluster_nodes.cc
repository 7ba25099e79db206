#include "pipeline/testing/cluster_nodes.h"

#include <algorithm>

#include "base/log.h"

namespace millrace::testing {
namespace {

// The sabotage of the data plane's caller.
class ForgetfulPayloads : public Payloads {
 public:
  explicit ForgetfulPayloads(Payloads& inner) : inner_(inner) {}
  Result<wire::Payload> give(ReqId id, const Value& value, const wire::Peer& to) override {
    return inner_.give(id, value, to);
  }
  void take(ReqId id, const wire::Payload& payload, int timeout_ms, Taken done) override {
    inner_.take(id, payload, timeout_ms, std::move(done));
  }
  void forget(ReqId) override {}
  void tick(int64_t now_ms) override { inner_.tick(now_ms); }

 private:
  Payloads& inner_;
};

RelayOptions options_of(Dice& dice) {
  RelayOptions options;
  options.credits = static_cast<int>(dice.chance(0.3) ? dice.range(2, 4) : 64);
  options.pool_bytes = dice.chance(0.2) ? 65'536 : 1 << 20;
  options.lease_ms = 4000;
  options.silent_ms = 2000;
  return options;
}

}  // namespace

World::World(const ClusterOptions& o)
    : options(o),
      dice(o.seed),
      spec(toy_spec({{"image_encoder", 2}, {"thinker", 2}, {"decode", 2}})),
      library(toy_rules()),
      bus({.seed = o.seed, .notice_ms = static_cast<int64_t>(o.seed % 3) * 20, .through_codec = true}),
      network(o.seed),
      relay_options(options_of(dice)) {
  spec.request_timeout_s = 600;
  spec.max_requests = 16;
  // A third of the worlds has a perfect network, so that the other accidents are seen by themselves.
  const double bad = dice.chance(0.33) ? 0 : dice.chance(0.5) ? 0.002 : 0.02;
  bad_link = {.min_delay_ms = 0, .max_delay_ms = dice.range(0, 12), .drop = bad, .duplicate = bad * 2, .reorder = bad};
  bad_relay = {.max_delay_ms = static_cast<int>(dice.range(0, 12)), .loss = bad, .duplicate = bad, .corrupt = bad / 2};
  bad_relay.exhausted = dice.chance(0.3) ? 0.2 : 0;
  // With few credits, readers must copy: a fan-in that holds the credits of one request's parts while it waits for the
  // others would starve them.
  const bool tight = relay_options.credits < 64 || relay_options.pool_bytes < (1u << 20);
  bad_relay.mapped = !tight && dice.chance(0.5);
  set_weather(false);

  make_boss();
  for (const StageSpec& stage : spec.stages) {
    for (uint32_t replica = 0; replica < static_cast<uint32_t>(stage.replicas); ++replica) {
      auto& node = nodes.emplace_back(std::make_unique<StageNode>());
      node->name = fmt::format("{}-{}", stage.name, replica);
      node->stage = stage.name;
      node->replica = replica;
      node->slow_ms = dice.chance(0.2) ? dice.range(20, 300) : dice.range(0, 8);
      start(*node);
    }
  }
}

void World::make_boss() {
  boss_relay = std::move(network.make_relay(relay_options)).value();
  boss_inbox = std::move(bus.inbox(kBoss)).value();
  const loop::Relays relays = {{"sim", boss_relay}};
  const wire::Peer self = peer_of(kBoss, kBossStage, 0);
  real_payloads = std::make_unique<RelayPayloads>(self, relays, "auto", [] {});
  payloads.reset();
  if (options.sabotage == Sabotage::kDropCleanup) payloads = std::make_unique<ForgetfulPayloads>(*real_payloads);
  // A session is drawn at random, as the seeds are not.
  CoordinatorOptions boss_options{.session = mix_bits(options.seed + ++sessions_), .self = self};
  boss_options.client_limits.max_chunks = 16;
  boss = std::make_unique<Coordinator>(spec, library, boss_options, *this, payloads ? *payloads : *real_payloads, now);
}

void World::replace_boss() {
  record("the coordinator dies");
  const CoordinatorBooks books = boss->books();
  report.fenced += books.fenced, report.repeated += books.repeated, report.late += books.late;
  boss.reset();
  payloads.reset();
  real_payloads.reset();
  boss_inbox.reset();
  bus.kill(kBoss);
  network.kill(boss_relay->address());
  boss_relay->close();
  make_boss();
}

World::~World() {
  for (auto& node : nodes) node->loop.reset();
}

wire::Peer World::peer_of(const std::string& name, const std::string& stage, uint32_t replica) const {
  wire::Peer peer{.stage = stage, .replica = replica, .endpoint = name, .host = "h", .boot = "b", .pid = 1};
  if (stage == kBossStage) peer.relays = {{.relay = "sim", .address = {boss_relay->address()}}};
  return peer;
}

StageNode* World::find(const std::string& name) {
  for (auto& node : nodes) {
    if (node->name == name) return node.get();
  }
  return nullptr;
}

// ---- what the coordinator asks of the world

std::shared_ptr<Outbox> World::open(const std::string& endpoint) {
  return sabotaged(bus.outbox(kBoss, endpoint), options.sabotage);
}

// The supervisor: what is dead is started again; what is only silent is killed first, or awaited as if it were remote.
void World::lost(const ReplicaView& replica, const std::string& reason) {
  StageNode& node = *find(fmt::format("{}-{}", replica.stage, replica.replica));
  record("lost {} incarnation {}: {}", node.name, replica.peer.incarnation, reason);
  if (node.incarnation != replica.peer.incarnation || node.born_ms >= 0) return;
  if (node.loop && dice.chance(0.5)) return;
  if (node.loop) kill(node);
  node.born_ms = now + dice.range(50, 1000);
}

// ---- the nodes' lives

void World::start(StageNode& node) {
  node.born_ms = -1;
  ++node.incarnation;
  node.relay = std::move(network.make_relay(relay_options)).value();
  node.inbox = std::move(bus.inbox(node.name)).value();
  StageLoopConfig config = std::move(make_loop_config(spec.stages, spec.entry, node.stage)).value();
  config.self = peer_of(node.name, node.stage, node.replica);
  config.self.incarnation = node.incarnation;
  config.reply_to = node.name;
  config.spec_hash = spec.hash();
  config.coordinator = peer_of(kBoss, kBossStage, 0);
  StageLoopEnv env;
  env.coordinator = sabotaged(bus.outbox(node.name, kBoss), options.sabotage);
  env.connect = [this, name = node.name](const wire::Peer& peer) -> Result<std::shared_ptr<Outbox>> {
    std::string endpoint = peer.endpoint;
    if (options.sabotage == Sabotage::kWrongReplica && peer.stage == "thinker") {
      endpoint = fmt::format("thinker-{}", 1 - peer.replica);
    }
    return sabotaged(bus.outbox(name, endpoint), options.sabotage);
  };
  env.relays = {{"sim", node.relay}};
  env.wake = [&node] { node.dirty = true; };
  env.next_incarnation = [&node](uint64_t) { return ++node.incarnation; };
  env.worker =
      std::make_unique<loop::InlineWorkerHost>(make_toy_worker(node.stage, [&node](ReqId) { return node.slow_ms; }));
  node.loop = std::move(StageLoop::make(std::move(config), library, std::move(env))).value();
  node.wake_ms = now;
  record("start {} incarnation {}", node.name, node.incarnation);
}

void World::kill(StageNode& node) {
  if (!node.loop) return;
  record("kill {} incarnation {}", node.name, node.incarnation);
  const uint64_t incarnation = node.loop->incarnation();
  node.resume_ms = -1;
  bus.kill(node.name);
  network.kill(node.relay->address());
  node.loop.reset();
  node.inbox.reset();
  node.relay->close();
  node.relay.reset();
  // The supervisor sees most deaths at once; what runs elsewhere is found out by its silence.
  if (dice.chance(0.6)) {
    node.born_ms = now + dice.range(50, 1000);
    boss->down(node.stage, node.replica, incarnation, "killed", now);
  } else {
    node.born_ms = now + dice.range(50, 4000);
  }
}

void World::pause(StageNode& node, int64_t ms) {
  if (!node.loop || node.paused()) return;
  record("pause {} for {} ms", node.name, ms);
  node.resume_ms = now + ms;
  bus.pause(node.name);
  network.pause(node.relay->address());
}

void World::resume(StageNode& node) {
  node.resume_ms = -1;
  if (!node.loop) return;
  record("resume {}", node.name);
  bus.resume(node.name);
  network.carry_on(node.relay->address());
  node.dirty = true;
}

// Its messages to the coordinator are held up on the way, and then arrive.
void World::delay(StageNode& node, int64_t ms) {
  record("{} arrives {} ms late", node.name, ms);
  bus.set_link(node.name, kBoss, {.min_delay_ms = ms, .max_delay_ms = ms});
  delayed.insert(node.name);
}

void World::cut(std::size_t a, std::size_t b, bool heal) {
  const auto name = [this](std::size_t i) { return i == nodes.size() ? kBoss : nodes[i]->name; };
  const auto relay = [this](std::size_t i) { return i == nodes.size() ? boss_relay : nodes[i]->relay; };
  record("{} {} and {}", heal ? "heal" : "cut", name(a), name(b));
  if (heal) {
    bus.heal_both(name(a), name(b));
  } else {
    bus.partition(name(a), name(b));
  }
  if (!relay(a) || !relay(b)) return;
  if (heal) {
    network.heal(relay(a)->address(), relay(b)->address());
  } else {
    network.cut(relay(a)->address(), relay(b)->address());
  }
}

void World::heal_all() {
  set_weather(true);
  for (std::size_t a = 0; a <= nodes.size(); ++a) {
    for (std::size_t b = a + 1; b <= nodes.size(); ++b) cut(a, b, true);
  }
  for (const std::string& name : delayed) bus.set_link(name, kBoss, {.max_delay_ms = 2});
  for (auto& node : nodes) {
    if (node->paused()) resume(*node);
    if (!node->loop && node->born_ms < 0) node->born_ms = now;
  }
}

void World::set_weather(bool fair) {
  bus.set_default_link(fair ? SimLink{.max_delay_ms = 2} : bad_link);
  network.set_faults(fair ? SimFaults{.max_delay_ms = 2, .mapped = bad_relay.mapped} : bad_relay);
}

// ---- time

int64_t World::next_moment(int64_t until_ms) const {
  int64_t next = std::min(until_ms, boss_tick_ms_);
  if (const auto arrival = bus.next_arrival_ms()) next = std::min(next, *arrival);
  if (const int64_t event = network.next_event_ms(); event >= 0) next = std::min(next, now + event);
  for (const auto& node : nodes) {
    if (node->born_ms >= 0) next = std::min(next, node->born_ms);
    if (node->paused()) {
      next = std::min(next, node->resume_ms);
    } else if (node->loop) {
      next = std::min(next, node->dirty ? now : node->wake_ms);
    }
  }
  return std::max(next, now + 1);
}

void World::step(int64_t until_ms) {
  const int64_t next = next_moment(until_ms);
  bus.advance(next - now);
  network.advance(next - now);
  now = next;
  for (auto& node : nodes) {
    if (node->born_ms >= 0 && node->born_ms <= now && !node->loop) start(*node);
    if (node->paused() && node->resume_ms <= now) resume(*node);
    if (node->loop && !node->paused()) run_node(*node);
  }
  run_boss();
}

void World::run_node(StageNode& node) {
  bool due = std::exchange(node.dirty, false) || node.wake_ms <= now;
  while (auto message = node.inbox->receive(0)) {
    if (options.sabotage == Sabotage::kLoseAborts && std::holds_alternative<wire::AbortRequest>(*message)) continue;
    node.loop->handle(std::move(*message), now);
    due = true;
  }
  if (!due) return;
  node.wake_ms = node.loop->tick(now);
  if (!node.loop->ended()) return;
  record("{} ended: {}", node.name, node.loop->end_status().to_string());
  kill(node);
}

void World::run_boss() {
  bool due = boss_tick_ms_ <= now;
  while (auto message = boss_inbox->receive(0)) boss->handle(std::move(*message), now), due = true;
  if (!due && boss->books().fetches == 0) return;
  boss->tick(now);
  const CoordinatorBooks books = boss->books();
  boss_tick_ms_ = now + (books.live + books.open_aborts + books.fetches > 0 ? kCoordinatorTickMs : 250);
}

// Everything that is open, in words; empty: nothing.
std::string World::open_books() const {
  std::string out;
  const auto add = [&out](const std::string& who, const char* what, auto value) {
    if (value != 0) out += fmt::format("{}: {} {}; ", who, value, what);
  };
  const CoordinatorBooks b = boss->books();
  add(kBoss, "live", b.live), add(kBoss, "pending", b.pending), add(kBoss, "fetches", b.fetches);
  add(kBoss, "queued chunks", b.queued_chunks), add(kBoss, "queued bytes", b.queued_bytes);
  add(kBoss, "open aborts", b.open_aborts), add(kBoss, "awaited acks", b.awaited_acks);
  add(kBoss, "orders", b.open_commands);
  add(kBoss, "puts", real_payloads->open_puts()), add(kBoss, "gets", real_payloads->open_gets());
  const auto add_relay = [&add](const std::string& who, const Relay& relay) {
    const RelayBooks books = relay.books();
    add(who, "relay puts", books.puts), add(who, "relay gets", books.gets);
    add(who, "relay bytes", books.held_bytes), add(who, "lent parts", books.lent_parts);
  };
  add_relay(kBoss, *boss_relay);
  for (const auto& node : nodes) {
    if (!node->loop) {
      out += node->name + " is dead; ";
      continue;
    }
    if (!node->loop->member()) out += node->name + " is no member; ";
    const StageLoopBooks l = node->loop->books();
    add(node->name, "requests", l.requests), add(node->name, "ending", l.ending), add(node->name, "puts", l.puts);
    add(node->name, "gets", l.gets), add(node->name, "drains", l.drains), add(node->name, "held chunks", l.held_chunks);
    add(node->name, "queued items", l.queued_items), add(node->name, "queued bytes", l.queued_bytes);
    add(node->name, "worker events", l.worker_events), add(node->name, "parked", l.parked);
    add(node->name, "notices", l.notices), add(node->name, "lists", l.lists);
    add_relay(node->name, *node->relay);
  }
  return out;
}

}  // namespace millrace::testing
