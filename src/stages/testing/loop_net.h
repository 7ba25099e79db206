// LoopNet: stage loops of a whole pipeline on one thread, in virtual time, over a network that delays, loses, repeats
// and reorders by a seed; nodes are killed and born again, or stand still. The same seed gives the same run.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "stages/stage_loop.h"
#include "stages/testing/fake_relay.h"
#include "stages/testing/mini_coordinator.h"

namespace millrace::testing {

struct NetFaults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;
  int64_t max_delay_ms = 5;
  double full = 0;  // a send finds the outbox full
};

class LoopNet {
 public:
  LoopNet(std::vector<StageSpec> stages, std::string entry, const Library& library, uint64_t seed, NetFaults faults)
      : stages_(std::move(stages)), library_(library), faults_(faults), seed_(seed), coordinator_relay_(hub, "coord") {
    hub.seed = seed;
    coordinator =
        std::make_unique<MiniCoordinator>(stages_, entry, coordinator_relay_, "fake",
                                          [this](const std::string& stage, uint32_t replica, wire::Message message) {
                                            fly("coord", node_name(stage, replica), std::move(message));
                                          });
    for (const StageSpec& spec : stages_) {
      for (int replica = 0; replica < spec.replicas; ++replica) {
        Node node;
        node.config = make_loop_config(stages_, entry, spec.name).value();
        node.config.self.replica = static_cast<uint32_t>(replica);
        node.config.self.incarnation = 0;
        node.config.coordinator = coordinator->self();
        nodes_[node_name(spec.name, node.config.self.replica)] = std::move(node);
      }
    }
    for (auto& [name, node] : nodes_) born(name);
  }

  static std::string node_name(const std::string& stage, uint32_t replica) {
    return stage + "/" + std::to_string(replica);
  }

  // One step of 1 ms: what arrives, what is due.
  void step() {
    ++now;
    hub.step(now);
    while (!flying_.empty() && std::get<0>(flying_.begin()->first) <= now) {
      auto entry = flying_.extract(flying_.begin());
      auto& [to, message] = entry.mapped();
      if (to == "coord") {
        coordinator->handle(message, now);
      } else if (Node& node = nodes_.at(to); node.loop) {
        node.queue.push_back(std::move(message));
      }
    }
    for (auto& [name, node] : nodes_) {
      if (!node.loop && now >= node.born_ms) born(name);
      if (!node.loop || now < node.paused_until_ms) continue;
      std::vector<wire::Message> queue;
      queue.swap(node.queue);
      for (wire::Message& message : queue) node.loop->handle(std::move(message), now);
      node.loop->tick(now);
    }
    coordinator->tick(now);
  }
  void run(int64_t ms) {
    for (int64_t i = 0; i < ms; ++i) step();
  }
  bool run_until(const std::function<bool()>& done, int64_t limit_ms) {
    for (int64_t i = 0; i < limit_ms && !done(); ++i) step();
    return done();
  }
  void kill(const std::string& name, int64_t born_after_ms) {
    Node& node = nodes_.at(name);
    node.loop.reset();
    node.queue.clear();
    hub.forget(name);
    node.born_ms = now + born_after_ms;
  }
  void pause(const std::string& name, int64_t ms) { nodes_.at(name).paused_until_ms = now + ms; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, node] : nodes_) out.push_back(name);
    return out;
  }
  const StageLoop* loop(const std::string& name) const { return nodes_.at(name).loop.get(); }
  void calm() { faults_ = {.max_delay_ms = faults_.max_delay_ms}; }
  double uniform() { return philox_uniform(seed_, draws_++, 5); }

  FakeHub hub;
  int64_t now = 1000;
  std::unique_ptr<MiniCoordinator> coordinator;

 private:
  struct Node {
    StageLoopConfig config;
    std::unique_ptr<StageLoop> loop;
    std::vector<wire::Message> queue;
    int64_t born_ms = 0;
    int64_t paused_until_ms = 0;
  };
  struct NetOutbox : Outbox {
    NetOutbox(LoopNet& n, std::string f, std::string t) : net(n), from(std::move(f)), to(std::move(t)) {}
    Status send(wire::Message& message) override {
      if (net.uniform() < net.faults_.full) return error(StatusCode::kResourceExhausted, "the outbox is full");
      if (to != "coord" && !net.nodes_.at(to).loop) return error(StatusCode::kUnavailable, "the node is down");
      net.fly(from, to, std::move(message));
      return ok_status();
    }
    LoopNet& net;
    std::string from, to;
  };

  void born(const std::string& name) {
    Node& node = nodes_.at(name);
    ++node.config.self.incarnation;
    StageLoopEnv env;
    env.coordinator = std::make_shared<NetOutbox>(*this, name, "coord");
    env.connect = [this, name](const wire::Peer& peer) -> Result<std::shared_ptr<Outbox>> {
      return std::shared_ptr<Outbox>(std::make_shared<NetOutbox>(*this, name, node_name(peer.stage, peer.replica)));
    };
    env.relays = {{"fake", std::make_shared<FakeRelay>(hub, name)}};
    // A lease that is lost makes a newer incarnation; so does a birth, which must be newer still.
    env.next_incarnation = [&node](uint64_t) { return ++node.config.self.incarnation; };
    auto worker = library_.workers.at(node.config.spec.worker)(node.config.spec.args, {});
    env.worker = std::make_unique<loop::InlineWorkerHost>(std::move(worker).value());
    node.loop = StageLoop::make(node.config, library_, std::move(env)).value();
  }
  void fly(const std::string& from, const std::string& to, wire::Message message) {
    if (uniform() < faults_.drop) return;
    const int copies = uniform() < faults_.duplicate ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      int64_t at = now + 1 + static_cast<int64_t>(uniform() * static_cast<double>(faults_.max_delay_ms));
      int64_t& last = last_[{from, to}];
      if (uniform() < faults_.reorder) {
        at += 20;
      } else {
        last = at = std::max(at, last);
      }
      wire::Message copy = message;
      flying_.emplace(std::make_tuple(at, next_++), std::make_pair(to, std::move(copy)));
    }
  }

  const std::vector<StageSpec> stages_;
  const Library& library_;
  NetFaults faults_;
  const uint64_t seed_;
  uint64_t draws_ = 0;
  uint64_t next_ = 0;
  FakeRelay coordinator_relay_;
  std::map<std::pair<std::string, std::string>, int64_t> last_;
  std::map<std::tuple<int64_t, uint64_t>, std::pair<std::string, wire::Message>> flying_;
  std::map<std::string, Node> nodes_;
};

}  // namespace millrace::testing
