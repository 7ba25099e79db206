#include "pipeline/chain_port.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/log.h"

namespace millrace {

struct ChainPort::State {
  struct Range {
    std::string stage;
    uint64_t incarnation = 0;  // of the holder that was there last, like its pid; 0: none was
    int64_t pid = 0;
    bool up = false;
    std::string endpoint;
  };

  State(PipelineNetwork& network, uint32_t index, uint32_t replica)
      : network(network), index(index), replica(replica) {}

  uint32_t next() const { return (index + 1) % static_cast<uint32_t>(ranges.size()); }
  std::string name(uint32_t range) const {
    return replicas > 1 ? fmt::format("{}-{}", ranges[range].stage, replica) : ranges[range].stage;
  }
  // What is new of a range. Under the mutex.
  void update(uint32_t range, const wire::Peer& peer);
  void report(uint32_t range, const std::string& how);
  void connect();

  PipelineNetwork& network;
  const uint32_t index, replica;
  int replicas = 1;
  std::mutex mutex;
  std::vector<Range> ranges;       // guarded by mutex, like the rest
  std::shared_ptr<Outbox> outbox;  // to the next range; null: it is not there
  std::string connected;           // its endpoint
  bool member = true;              // this stage has its lease
  RangePeers::Lost lost;           // of the first range
};

namespace {

// The way to the next range, wherever it is now.
template <typename State>
struct NextOutbox final : Outbox {
  explicit NextOutbox(std::shared_ptr<State> state) : state(std::move(state)) {}
  Status send(wire::Message& message) override {
    std::shared_ptr<Outbox> outbox;
    {
      const std::lock_guard lock(state->mutex);
      outbox = state->outbox;
    }
    const Status sent = outbox ? outbox->send(message) : error(StatusCode::kUnavailable, "it is not there");
    return sent.ok() ? sent : sent.with_prefix(fmt::format("stage '{}'", state->name(state->next())));
  }
  const std::shared_ptr<State> state;
};

template <typename State>
struct OtherRanges final : RangePeers {
  explicit OtherRanges(std::shared_ptr<State> state) : state(std::move(state)) {}
  ~OtherRanges() override {
    const std::lock_guard lock(state->mutex);
    state->lost = nullptr;
  }
  void on_lost(Lost lost) override {
    const std::lock_guard lock(state->mutex);
    state->lost = std::move(lost);
  }
  // Its process is another host's, which is not ended from here; its lease runs out.
  void restart(uint32_t) override {}
  const std::shared_ptr<State> state;
};

}  // namespace

Result<std::shared_ptr<ChainPort>> ChainPort::make(PipelineNetwork& network, const PipelineSpec& spec,
                                                   const StageReplica& stage, uint64_t incarnation) {
  const StageSpec& self = *spec.find(stage.stage);
  const std::vector<const StageSpec*> chain = chain_of(spec, self);
  CHECK(chain.size() >= 2);
  std::shared_ptr<ChainPort> port(new ChainPort());
  const auto at = std::find(chain.begin(), chain.end(), &self);
  CHECK(at != chain.end());
  port->index_ = static_cast<uint32_t>(at - chain.begin());
  port->state_ = std::make_shared<State>(network, port->index_, stage.replica);
  port->state_->replicas = self.replicas;
  for (const StageSpec* one : chain) {
    port->ranges_.push_back(*one->layers);
    port->state_->ranges.push_back({.stage = one->name});
  }
  ASSIGN_OR_RETURN(port->inbox_, network.bind_direct(stage.stage, stage.replica, incarnation));
  port->endpoint_ = port->inbox_->endpoint();
  return port;
}

// The same table as the stage loop goes by: of the coordinator's present session, and newer than the last one.
void ChainPort::on_peers(const wire::Peers& table) {
  const std::lock_guard lock(state_->mutex);
  state_->member = true;
  for (uint32_t range = 0; range < state_->ranges.size(); ++range) {
    if (range == index_) continue;
    const auto found = std::find_if(table.peers.begin(), table.peers.end(), [&](const wire::Peer& peer) {
      return peer.stage == state_->ranges[range].stage && peer.replica == state_->replica;
    });
    if (found != table.peers.end()) state_->update(range, *found);
  }
  state_->connect();
}

// What it knows of the other ranges stays: the next table shows which of them were lost meanwhile.
void ChainPort::on_lease_lost() {
  const std::lock_guard lock(state_->mutex);
  state_->member = false;
  state_->connect();
}

void ChainPort::State::update(uint32_t range, const wire::Peer& peer) {
  Range& known = ranges[range];
  // Under another coordinator, incarnations of the server's own children begin anew.
  const bool other =
      peer.incarnation != known.incarnation || peer.pid != known.pid || peer.direct_endpoint != known.endpoint;
  if (known.up && (other || !peer.up)) report(range, peer.up ? "it was started again" : "it is gone");
  known.up = peer.up;
  known.incarnation = peer.incarnation;
  known.pid = peer.pid;
  known.endpoint = peer.up ? peer.direct_endpoint : "";
}

// Before there is a receiver no range has any KV of its chain. It queues what it gets: nothing computes on this thread.
void ChainPort::State::report(uint32_t range, const std::string& how) {
  if (lost) lost(range, fmt::format("stage '{}': {}", name(range), how), false);
}

// A connection to an endpoint of a range that is gone would be tried for ever.
void ChainPort::State::connect() {
  const std::string endpoint = member ? ranges[next()].endpoint : "";
  if (endpoint == connected) return;
  outbox.reset();
  connected.clear();
  if (endpoint.empty()) return;
  auto made = network.connect_direct(endpoint, kMaxQueuedSteps);
  if (!made.ok()) {  // the table comes again
    LOG_WARNING("stage '{}' cannot be reached at '{}': {}", name(next()), endpoint, made.status().message());
    return;
  }
  outbox = std::move(made).value();
  connected = endpoint;
}

Result<ChainLinks> ChainPort::take_links() {
  if (!inbox_) return internal_error("the links of the chain were taken before");
  ChainLinks links;
  links.inbox = std::move(inbox_);
  links.next = std::make_shared<NextOutbox<State>>(state_);
  if (index_ == 0) links.peers = std::make_unique<OtherRanges<State>>(state_);
  return links;
}

std::shared_ptr<const ChainSlot> ChainPort::slot(const std::shared_ptr<ChainPort>& port) {
  auto slot = std::make_shared<ChainSlot>();
  slot->ranges = port->ranges_;
  slot->index = port->index_;
  slot->open = [port] { return port->take_links(); };
  return slot;
}

}  // namespace millrace
