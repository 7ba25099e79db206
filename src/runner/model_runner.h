// ModelRunner: the Runner of a model on one machine: a LayerEngine of all layers and the HeadAndSampler behind it, on a
// thread of its own.
//
// submit() queues a batch and wakes the compute thread, which checks it, fills in the tokens that the batch before it
// sampled, takes it through the model in parts (runner/part.h), and hands the result to poll(). Only the rows that
// answer something go through the vocabulary head.
//
// Owner: the scheduler's stage. Threads: as in runner.h; everything below "compute thread" in the class belongs to that
// thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "models/model.h"
#include "runner/batch_check.h"
#include "runner/head_and_sampler.h"
#include "runner/layer_engine.h"
#include "runner/model_reaper.h"
#include "runner/part.h"
#include "runner/row_source.h"
#include "runner/runner.h"
#include "runner/runner_options.h"

namespace millrace {

inline constexpr int32_t kModelRunnerDepth = 2;  // batches in flight: one is computed while the next is planned

class ModelRunner final : public Runner {
 public:
  // The model must own all layers. kInvalidArgument or kUnsupported for options out of range, kResourceExhausted where
  // the pages do not fit in memory.
  static Result<std::unique_ptr<ModelRunner>> make(std::shared_ptr<const Model> model, RunnerOptions options);
  ~ModelRunner() override;  // batches not yet computed are dropped

  RunnerFacts facts() const override;
  Status submit(Batch batch) override;
  std::optional<BatchResult> poll(int timeout_ms) override;
  Status read_pages(std::span<const PageId> pages, std::span<std::byte> to, LayerSpan layers) override {
    return engine_->read(pages, to, layers);
  }
  std::optional<StoredRows> stored_rows() const override;
  uint64_t progress() const override { return engine_->motion(); }

  // Pages keep the keys and values that older weights wrote: the caller keys them by weight version. Old weights are
  // freed on another thread; while kMaxRetiredModels wait for that, no more are staged.
  Status stage(std::shared_ptr<const Model> model) override;
  void drop_staged() override;
  uint64_t staged_version() const override;
  std::shared_ptr<const Model> serving() const override;
  Status serve_staged() override;

 private:
  struct Job {
    Batch batch;
    std::shared_ptr<const Model> model;  // this step's weights
  };
  ModelRunner(std::shared_ptr<const Model> model, RunnerOptions options, RunnerFacts facts,
              std::unique_ptr<LayerEngine> engine);

  void compute_main();
  bool next_job(BatchResult* result, Job& job);
  void wait_for_job(std::unique_lock<std::mutex>& lock);
  void switch_model();
  bool batch_switches() const;
  BatchResult run(Batch batch, const Model& model);
  Status move_pages(const Batch& batch);
  void compute(Batch& batch, const Model& model, BatchResult& result);
  void set_stored(const std::optional<StoredRows>& stored);

  const int32_t max_rows_;
  const RunnerFacts facts_;

  mutable std::mutex mutex_;
  std::condition_variable queue_changed_;     // the compute thread waits for it
  std::condition_variable finished_changed_;  // poll() waits for it
  std::deque<Batch> queued_;                  // guarded by mutex_, like the next six
  std::deque<BatchResult> finished_;
  std::shared_ptr<const Model> model_;   // serves
  std::shared_ptr<const Model> staged_;  // may be named by a batch
  int in_flight_ = 0;                    // submitted and not polled
  bool stopping_ = false;
  std::optional<StoredRows> stored_;  // of the batch that is computed

  ModelReaper reaper_;

  // Compute thread.
  const std::shared_ptr<RowSource> row_source_;  // null: there is none
  const std::unique_ptr<LayerEngine> engine_;
  HeadAndSampler answers_;
  BatchCheck check_;
  Part part_;
  std::vector<float> summed_row_;
  std::optional<std::chrono::steady_clock::time_point> last_end_;  // of the batch before

  std::thread thread_;  // last: it uses everything above
};

}  // namespace millrace
