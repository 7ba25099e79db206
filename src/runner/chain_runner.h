// ChainRunner: the Runner of a model whose layers are split over several processes. The first range is here: embedding,
// its own layers, and the vocabulary head with all that samples; the rows that answer something come back to it from
// the last range. So a tied matrix is held once, and texts, grammars and sampling options never travel.
//
//   submit(batch) -> parts -> embed, own layers -> LayerStep -> other ranges -> LayerResult -> head, draws -> poll()
//
// Up to ranges + 1 parts are in flight, so that all ranges compute at the same time; what comes back is answered before
// a new part is begun. The tokens are the same bits as those of ModelRunner.
//
// A range that dies has lost the KV of its layers: all batches in flight fail with kUnavailable, kv_epoch() grows, and
// a new epoch of the chain begins when the range is back. For kOutageWaitMs the runner says that it is recovering;
// after that batches fail at once. The other ranges keep their weights. A range that is silent
// (runner/range_liveness.h) is taken for dead, and if it goes on, its process is ended.
//
// Owner: the scheduler's stage. Threads: as in runner.h; everything below "compute thread" belongs to that thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "models/model.h"
#include "runner/chain_batches.h"
#include "runner/chain_links.h"
#include "runner/chain_metrics.h"
#include "runner/chain_traces.h"
#include "runner/head_and_sampler.h"
#include "runner/layer_engine.h"
#include "runner/page_tables.h"
#include "runner/range_liveness.h"
#include "runner/runner.h"
#include "wire/layer_messages.h"

namespace millrace {

// Rows of one part at most. A prompt's chunk of 512 rows is several parts, so that all ranges compute at it: m parts
// keep S ranges busy for m / (m + S - 1) of the time. Fewer rows would read the weights more often than products hide.
inline constexpr int32_t kPartRows = 128;
inline constexpr int kHelloRetryMs = 200;       // between two tries to complete the chain
inline constexpr int kOutageWaitMs = 60'000;    // so long requests wait for a range that is gone
inline constexpr int kPartTimeoutMs = 120'000;  // a part that is not back by then is lost, and its epoch with it

struct ChainPlan {
  uint32_t ranges = 2;
  uint64_t model_hash = 0;  // as the other ranges have it
};

class ChainRunner final : public Runner {
 public:
  // `model`: the first range. kInvalidArgument or kUnsupported for options or a plan out of range, kResourceExhausted
  // where the pages do not fit in memory.
  static Result<std::unique_ptr<ChainRunner>> make(std::shared_ptr<const Model> model, RunnerOptions options,
                                                   const ChainPlan& plan, ChainLinks links);
  ~ChainRunner() override;

  // Until all ranges are there, or one refuses the chain or is lost for good. `waiting` is called every kHelloRetryMs;
  // false ends the wait with kCancelled.
  Status wait_complete(const std::function<bool()>& waiting);

  RunnerFacts facts() const override;
  Status submit(Batch batch) override;
  std::optional<BatchResult> poll(int timeout_ms) override;
  // A wait for the other ranges is no standstill of this process: they are looked after by themselves.
  uint64_t progress() const override { return engine_->motion() + results_ + waits_; }
  uint64_t kv_epoch() const override;
  std::string missing() const override;
  bool recovering() const override { return recovering_; }
  std::vector<RunnerMetric> metrics() const override { return metrics_.samples(); }
  bool begin_trace(ReqId request) override { return traces_.begin(request), true; }
  std::vector<RangeFigures> end_trace(ReqId request) override { return traces_.end(request); }

 private:
  ChainRunner(std::shared_ptr<const Model> model, RunnerOptions options, RunnerFacts facts,
              std::unique_ptr<LayerEngine> engine, const ChainPlan& plan, ChainLinks links);

  void compute_main();
  bool step();
  void receive(bool moved);
  void take_queued();
  void send_next_part();
  void send_part(const OutgoingPart& outgoing, wire::LayerStep step);
  void on(wire::LayerHello&& hello);
  void on(wire::LayerResult&& result);
  void on(wire::LayerAlive&& alive) { liveness_.on_alive(alive.stage_from); }
  template <typename M>
  void on(M&&) {}
  void answer(const wire::LayerResult& result);
  void begin_epoch();
  void send_hello();
  Status check_weights(uint64_t checksum) const;
  void take_losses();
  void check_liveness();
  void check_part_timeout();
  void break_chain(const std::string& why);
  void publish_finished();

  const std::shared_ptr<const Model> model_;
  const RunnerFacts facts_;
  const std::unique_ptr<LayerEngine> engine_;
  const uint32_t ranges_;
  const wire::ChainFacts chain_facts_;
  ChainLinks links_;
  const std::shared_ptr<Waker> waker_;  // of the compute thread
  std::atomic<uint64_t> results_{0};
  std::atomic<uint64_t> waits_{0};  // of the compute thread, for the other ranges
  std::atomic<bool> recovering_{false};
  ChainMetrics metrics_;
  ChainTraces traces_;

  struct Loss {
    uint32_t range = 0;
    std::string how;
    bool final = false;
  };
  struct Queued {
    Batch batch;
    uint64_t kv_epoch = 0;  // that its sender knew of
  };
  mutable std::mutex mutex_;
  std::condition_variable finished_changed_;  // poll() waits for it
  std::condition_variable state_changed_;     // wait_complete() waits for it
  std::deque<Queued> queued_;                 // guarded by mutex_, like the next nine
  std::deque<BatchResult> finished_;
  std::deque<Loss> losses_;  // that the compute thread has not seen
  int in_flight_ = 0;        // submitted and not polled
  uint64_t kv_epoch_ = 0;
  mutable uint64_t seen_kv_epoch_ = 0;  // as kv_epoch() last returned
  bool complete_ = false;               // all ranges are there
  uint64_t weights_checksum_ = 0;       // of all ranges, as they first were there; 0: they never were
  std::string broken_;                  // why not
  Status refusal_;                      // why it will not be complete
  bool stopping_ = false;

  // Compute thread.
  HeadAndSampler answers_;
  ChainBatches batches_;
  const uint64_t first_epoch_ = 0;  // epochs of others begin elsewhere
  uint64_t epoch_ = 0;              // of the chain
  bool ready_ = false;              // complete_, for this thread
  bool refused_ = false;            // a range refuses it: no more hellos
  bool rested_ = false;             // there is nothing to do, not even KV memory to get ready
  uint64_t next_number_ = 0;        // of a step in this epoch
  PageTables tables_;               // as the other ranges have them
  RangeLiveness liveness_;
  std::chrono::steady_clock::time_point hello_sent_, broken_at_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace millrace
