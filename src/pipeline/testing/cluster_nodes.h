// The nodes of a simulated cluster: what runs where, and the environment of the coordinator. Included by cluster*.cc
// alone.
//
// Thread safety: none.
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "control/testing/sim_bus.h"
#include "pipeline/coordinator.h"
#include "pipeline/relay_payloads.h"
#include "pipeline/testing/cluster.h"
#include "pipeline/testing/toy_pipeline.h"
#include "relay/testing/sim/sim_network.h"
#include "stages/stage_loop.h"

namespace millrace::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix_bits(seed)) {}
  uint64_t next() { return state_ = mix_bits(state_); }
  int64_t range(int64_t low, int64_t high) {  // both may come
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

inline const std::string kBoss = "coordinator";
inline const std::string kBossStage = "front";  // as the table of peers names it

struct StageNode {
  std::string name;  // on the bus; also its endpoint
  std::string stage;
  uint32_t replica = 0;
  uint64_t incarnation = 0;
  std::shared_ptr<Relay> relay;
  std::unique_ptr<Inbox> inbox;
  std::unique_ptr<StageLoop> loop;  // null: the process is dead
  int64_t wake_ms = 0;
  int64_t born_ms = -1;    // when it is started again; -1: not planned
  int64_t resume_ms = -1;  // paused until
  int64_t slow_ms = 0;     // of each step of its worker
  bool dirty = false;
  bool paused() const { return resume_ms >= 0; }
};

class World : public CoordinatorEnv {
 public:
  explicit World(const ClusterOptions& options);
  ~World() override;

  // The environment of the coordinator.
  std::shared_ptr<Outbox> open(const std::string& endpoint) override;
  void lost(const ReplicaView& replica, const std::string& reason) override;

  void start(StageNode& node);
  void kill(StageNode& node);
  void pause(StageNode& node, int64_t ms);
  void resume(StageNode& node);
  void delay(StageNode& node, int64_t ms);
  void cut(std::size_t a, std::size_t b, bool heal);  // indexes of nodes; nodes.size(): the coordinator
  void heal_all();
  // The coordinator dies and another one begins; the stages outlive it.
  void replace_boss();
  // To the next moment at which something happens, `until_ms` at the latest.
  void step(int64_t until_ms);
  void run_until(int64_t ms) {
    while (now < ms) step(ms);
  }
  void set_weather(bool fair);
  std::string open_books() const;
  template <typename... Args>
  void record(fmt::format_string<Args...> format, Args&&... args) {
    if (options.trace) fmt::print(stderr, "{:6} {}\n", now, fmt::format(format, std::forward<Args>(args)...));
  }

  const ClusterOptions options;
  Dice dice;
  PipelineSpec spec;
  Library library;
  SimBus bus;
  SimNetwork network;
  RelayOptions relay_options;
  SimLink bad_link;
  SimFaults bad_relay;
  int64_t now = 0;
  std::shared_ptr<Relay> boss_relay;
  std::unique_ptr<Inbox> boss_inbox;
  std::unique_ptr<RelayPayloads> real_payloads;
  std::unique_ptr<Payloads> payloads;  // in front of those, where something is sabotaged
  std::unique_ptr<Coordinator> boss;
  std::vector<std::unique_ptr<StageNode>> nodes;
  std::set<std::string> delayed;  // links to the coordinator
  ClusterReport report;

 private:
  void run_node(StageNode& node);
  void run_boss();
  void make_boss();
  int64_t next_moment(int64_t until_ms) const;
  StageNode* find(const std::string& name);
  wire::Peer peer_of(const std::string& name, const std::string& stage, uint32_t replica) const;

  int64_t boss_tick_ms_ = 0;
  uint64_t sessions_ = 0;
};

// An outbox that does the sabotage to some messages.
std::shared_ptr<Outbox> sabotaged(std::shared_ptr<Outbox> outbox, Sabotage sabotage);

}  // namespace millrace::testing
