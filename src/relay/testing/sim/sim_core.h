// Inside of the simulated network: nodes, messages, the queue of events. Included by sim/*.cc alone.
//
// Thread safety: none, as in sim_network.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/testing/sim/sim_network.h"

namespace millrace {

inline constexpr int kSimResendMs = 50;

struct SimPut {
  std::vector<SharedBytes> parts;
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  std::string destination;
  int readers = 1;
  // Gets that came, by (node, get); true: released.
  std::map<std::pair<std::string, uint64_t>, bool> claims;
  bool ended = false;

  bool all_released() const;
  bool is_read() const;
};

struct SimGet {
  std::string writer;
  uint64_t put = 0;
};

struct SimNode {
  explicit SimNode(const RelayOptions& o) : options(o) {}
  RelayOptions options;
  InstanceId id;
  std::string address;
  std::unique_ptr<OpTable> table;
  std::map<uint64_t, SimPut> puts;               // by op
  std::map<uint64_t, SimGet> gets;               // by op
  std::vector<std::function<void()>> held_back;  // what arrived while it was paused
  bool dead = false;
  bool paused = false;
  int64_t silent_since = 0;
};

// A get on its way, and its answer.
struct SimAsk {
  std::string from;
  uint64_t get = 0;
  Descriptor descriptor;
};
struct SimAnswer {
  std::string from;
  uint64_t get = 0;
  uint64_t put = 0;
  Status status;
  std::vector<SharedBytes> parts;
  uint64_t checksum = 0;
};

struct SimNetwork::Core : std::enable_shared_from_this<Core> {
  Core(uint64_t s, SimFaults f) : seed(s), faults(f) {}

  uint64_t seed;
  SimFaults faults;
  int64_t now = 0;
  uint64_t draws = 0;
  uint64_t events_made = 0;
  uint64_t trace = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> events;
  std::map<std::string, std::shared_ptr<SimNode>> nodes;  // by address
  std::set<std::pair<std::string, std::string>> cuts;

  double draw();
  void note(uint64_t what, uint64_t op);
  void at(int64_t when, std::function<void()> event);
  SimNode* find(const std::string& address);
  bool is_cut(const std::string& a, const std::string& b) const;
  bool quiet(const SimNode& node) const { return node.dead || node.paused; }
  // Lets `node` do something when a message reaches it: later, where it is paused; never, where it is dead.
  void arrive(const std::string& to, std::function<void(SimNode&)> what);
  // One message with the accidents of the day. `spoil` does to it what damage does; null: it is dropped as a bad frame.
  void send(const std::string& from, const std::string& to, std::function<void(SimNode&)> what,
            std::function<void(SimNode&)> spoiled);
  // Reports to the writer that a get is over, again until it arrives.
  void send_release(const std::string& from, uint64_t get, const std::string& to, uint64_t put);
  void expire_at(SimNode& node, int64_t when);

  void on_ask(SimNode& writer, const SimAsk& ask);
  void on_answer(SimNode& reader, SimAnswer answer);
  void on_release(SimNode& writer, const std::string& from, uint64_t get, uint64_t put);
  void settle(SimNode& writer, uint64_t put);
  // `node` has been silent for so long that `by` takes it for dead.
  void give_up_on(SimNode& by, const std::string& node);
  // Looks after silent_ms of `by` whether `node` has been silent since.
  void check_alive(const SimNode& by, const std::string& node);
  void monitor(const std::string& node);
};

uint64_t sim_checksum(const std::vector<SharedBytes>& parts);
std::vector<SharedBytes> sim_copy(const std::vector<SharedBytes>& parts);
std::unique_ptr<Relay> make_sim_relay(std::shared_ptr<SimNetwork::Core> core, std::shared_ptr<SimNode> node);

}  // namespace millrace
