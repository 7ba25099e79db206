// RangeServer: a range of a chain that is not the first one: it takes rows from the range before it through its layers
// and sends them on. It has no requests and no books: which page is whose, the first range decides.
//
// Owner: the process of the range. Threads: run() is the compute thread; stop() and steps() from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "models/model.h"
#include "runner/chain_links.h"
#include "runner/layer_engine.h"
#include "runner/layer_step.h"
#include "runner/page_tables.h"
#include "wire/layer_messages.h"

namespace millrace {

struct RangeSlot {
  uint32_t index = 1;   // of this range, from 1
  uint32_t ranges = 2;  // of the chain
  wire::ChainFacts facts;
  // Pages and rows as the first range's hello has them, which decides. Empty: those of `facts`, and others are refused.
  std::function<Result<std::unique_ptr<LayerEngine>>(const wire::ChainFacts& first)> make_engine;
};

// What came and was dropped, by reason.
struct RangeCounters {
  std::atomic<uint64_t> steps{0};       // computed
  std::atomic<uint64_t> late{0};        // of another epoch
  std::atomic<uint64_t> repeated{0};    // steps that had come before
  std::atomic<uint64_t> refused{0};     // steps that were wrong, or came after a gap
  std::atomic<uint64_t> unexpected{0};  // messages for others
  std::atomic<uint64_t> unsent{0};      // the next range was not there, or its queue full
};

class RangeServer {
 public:
  // `engine`: null where the slot has make_engine.
  RangeServer(std::shared_ptr<const Model> model, std::unique_ptr<LayerEngine> engine, RangeSlot slot,
              ChainLinks links);

  void run();  // until stop()
  void stop();
  const RangeCounters& counters() const { return counters_; }
  const Model& model() const { return *model_; }

 private:
  void on(wire::LayerHello&& hello);
  void on(wire::LayerStep&& step);
  template <typename M>
  void on(M&&) {
    ++counters_.unexpected;
  }
  Status check_hello(const wire::LayerHello& hello);
  Status take_sizes(const wire::ChainFacts& first);
  void begin_epoch(uint64_t epoch);
  Status take_tables(const wire::LayerStep& step);
  Status compute(wire::LayerStep& step);
  void forward_rows(const wire::LayerStep& step);
  void send_on(wire::LayerStep&& step, kernels::ConstRows rows);
  void send_answer(wire::LayerStep&& step, kernels::ConstRows rows);
  void send(wire::Message message);

  const std::shared_ptr<const Model> model_;
  const ChainLinks links_;
  const std::shared_ptr<Waker> waker_;
  std::atomic<bool> stopping_{false};
  RangeCounters counters_;

  // Compute thread.
  std::unique_ptr<LayerEngine> engine_;  // null: no hello has given its sizes
  RangeSlot slot_;
  uint64_t epoch_ = 0;        // of the last hello; 0: there was none
  uint64_t next_number_ = 0;  // of a step in this epoch
  PageTables tables_;
  StepTables step_tables_;  // of the step in hand
  std::vector<int32_t> positions_;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<float> answers_;
};

}  // namespace millrace
