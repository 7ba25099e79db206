// For tests: a chain of ranges of one model in this process, each range on a thread of its own, with faults between
// them. Included by *_test.cc only.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "control/mailbox.h"
#include "models/model.h"
#include "runner/chain_runner.h"
#include "runner/layer_step.h"
#include "runner/range_server.h"

namespace millrace {

// Layers [begin, end) of a model, over the same weights.
inline std::shared_ptr<const Model> range_of(const std::shared_ptr<const Model>& model, LayerRange layers) {
  std::shared_ptr<const WeightTable> weights(model, &model->weights());
  return model_of_table(model->config(), std::move(weights), layers, model->weight_version()).value();
}

// Layers [0, count) as evenly as they go.
inline std::vector<LayerRange> even_ranges(int count, int ranges) {
  std::vector<LayerRange> out;
  for (int i = 0; i < ranges; ++i) out.push_back({count * i / ranges, count * (i + 1) / ranges});
  return out;
}

// Sees and may change what range `from` sends, and how often it arrives: 0 times, once, ...
using ChainTap = std::function<int(uint32_t from, wire::Message& message)>;

// Ranges 1 to S - 1, and the links of range 0.
class TestRanges {
 public:
  static constexpr uint64_t kModelHash = 0x5EED;

  TestRanges(const std::shared_ptr<const Model>& model, RunnerOptions options, std::vector<LayerRange> ranges,
             ChainTap tap = {})
      : model_(model), options_(std::move(options)), ranges_(std::move(ranges)), tap_(std::move(tap)) {
    options_.meters = nullptr;
    for (std::size_t i = 0; i < ranges_.size(); ++i) boxes_.push_back(std::make_shared<Box>());
    for (uint32_t i = 1; i < ranges_.size(); ++i) start(i);
  }
  ~TestRanges() {
    for (uint32_t i = 1; i < ranges_.size(); ++i) stop(i);
  }

  // A fresh range, with empty KV and no epoch. `change`: what it believes of the chain. `other`: a model that it has
  // instead of the chain's; null: that.
  void start(uint32_t index, const std::function<void(RangeSlot&)>& change = {},
             const std::shared_ptr<const Model>& other = nullptr) {
    auto model = range_of(other ? other : model_, ranges_[index]);
    auto engine = LayerEngine::make(*model, options_).value();
    RangeSlot slot{.index = index, .ranges = static_cast<uint32_t>(ranges_.size())};
    slot.facts = chain_facts(model->config(), options_, engine->isa(), kModelHash, model->weight_version());
    if (change) change(slot);
    LocalMailbox mailbox = make_local_mailbox();
    boxes_[index]->set(std::move(mailbox.outbox));
    if (servers_.size() <= index) servers_.resize(index + 1), threads_.resize(index + 1);
    servers_[index] = std::make_unique<RangeServer>(std::move(model), std::move(engine), std::move(slot),
                                                    ChainLinks{std::move(mailbox.inbox), out_of(index)});
    threads_[index] = std::thread([server = servers_[index].get()] { server->run(); });
  }
  void stop(uint32_t index) {
    boxes_[index]->set(nullptr);
    if (!threads_[index].joinable()) return;
    servers_[index]->stop();
    threads_[index].join();
  }
  // The range is gone and the first one is notified.
  void kill(uint32_t index, bool final = false) {
    stop(index);
    if (lost_) lost_(index, "killed", final);
  }
  // That the first one wanted to be started again; 0: none.
  uint32_t restarted() const { return restarted_; }
  // From now on the first one takes them to send LayerAlive.
  void set_send_alive() { send_alive_ = true; }
  // What the process of a range would send while it runs.
  void send_alive(uint32_t index) {
    wire::Message alive = wire::LayerAlive{index};
    (void)boxes_[0]->send(alive);
  }
  // A message that none of the chain has sent.
  void send(uint32_t to, wire::Message message) { (void)boxes_[to]->send(message); }
  const RangeCounters& counters(uint32_t index) const { return servers_[index]->counters(); }

  ChainLinks links() {
    LocalMailbox mailbox = make_local_mailbox();
    boxes_[0]->set(std::move(mailbox.outbox));
    return {std::move(mailbox.inbox), out_of(0), std::make_unique<Peers>(*this)};
  }
  std::shared_ptr<const Model> first() const { return range_of(model_, ranges_[0]); }
  ChainPlan plan() const { return {static_cast<uint32_t>(ranges_.size()), kModelHash}; }

 private:
  // The inbox of a range, which may be another one after a restart, or none.
  class Box {
   public:
    void set(std::shared_ptr<Outbox> outbox) {
      const std::lock_guard lock(mutex_);
      outbox_ = std::move(outbox);
    }
    Status send(wire::Message& message) {
      const std::lock_guard lock(mutex_);
      return outbox_ ? outbox_->send(message) : error(StatusCode::kUnavailable, "there is no receiver");
    }

   private:
    std::mutex mutex_;
    std::shared_ptr<Outbox> outbox_;
  };
  class Tapped final : public Outbox {
   public:
    Tapped(uint32_t from, std::shared_ptr<Box> to, ChainTap tap)
        : from_(from), to_(std::move(to)), tap_(std::move(tap)) {}
    Status send(wire::Message& message) override {
      const int times = tap_ ? tap_(from_, message) : 1;
      for (int i = 1; i < times; ++i) {
        wire::Message copy = message;
        RETURN_IF_ERROR(to_->send(copy));
      }
      return times == 0 ? ok_status() : to_->send(message);
    }

   private:
    const uint32_t from_;
    const std::shared_ptr<Box> to_;
    const ChainTap tap_;
  };
  struct Peers final : RangePeers {
    explicit Peers(TestRanges& ranges) : ranges(ranges) {}
    ~Peers() override { ranges.lost_ = nullptr; }
    void on_lost(Lost lost) override { ranges.lost_ = std::move(lost); }
    void restart(uint32_t range) override { ranges.restarted_ = range; }
    bool send_alive() const override { return ranges.send_alive_; }
    TestRanges& ranges;
  };

  std::shared_ptr<Outbox> out_of(uint32_t index) {
    return std::make_shared<Tapped>(index, boxes_[(index + 1) % ranges_.size()], tap_);
  }

  const std::shared_ptr<const Model> model_;
  RunnerOptions options_;
  const std::vector<LayerRange> ranges_;
  const ChainTap tap_;
  std::vector<std::shared_ptr<Box>> boxes_;
  std::vector<std::unique_ptr<RangeServer>> servers_;
  std::vector<std::thread> threads_;
  RangePeers::Lost lost_;
  std::atomic<bool> send_alive_{false};
  std::atomic<uint32_t> restarted_{0};
};

// The first range with its other ranges.
class TestChain final : public Runner {
 public:
  TestChain(const std::shared_ptr<const Model>& model, const RunnerOptions& options, std::vector<LayerRange> ranges,
            ChainTap tap = {})
      : ranges(model, options, std::move(ranges), std::move(tap)),
        runner(ChainRunner::make(this->ranges.first(), options, this->ranges.plan(), this->ranges.links()).value()) {}

  RunnerFacts facts() const override { return runner->facts(); }
  Status submit(Batch batch) override { return runner->submit(std::move(batch)); }
  std::optional<BatchResult> poll(int timeout_ms) override { return runner->poll(timeout_ms); }
  uint64_t kv_epoch() const override { return runner->kv_epoch(); }
  std::string missing() const override { return runner->missing(); }

  TestRanges ranges;
  std::unique_ptr<ChainRunner> runner;
};

inline std::unique_ptr<Runner> make_test_chain(const std::shared_ptr<const Model>& model, const RunnerOptions& options,
                                               int ranges) {
  auto chain = std::make_unique<TestChain>(model, options, even_ranges(model->config().layers, ranges));
  CHECK(chain->runner->wait_complete([] { return true; }).ok());
  return chain;
}

}  // namespace millrace
