// ModelRunner: the Runner that computes, one model over its own KV pages on its own thread.
//
// submit() queues a batch and wakes the compute thread, which checks it, fills in the tokens that the batch before it
// sampled, cuts it into parts of at most max_rows rows (rows of one sequence stay in order, so a part attends to what
// the parts before it stored), runs the model, sends only the rows that answer something through the vocabulary head,
// samples and scores, and hands the result to poll(). The cut, like the batch, changes no bit of any row
// (kernels/ops.h), and a draw depends on (seed, position) alone.
//
// Owner: the scheduler's stage. Threads: as in runner.h; everything below
// "compute thread" in the class belongs to that thread. Nothing is allocated for activations after make().
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "runner/batch_check.h"
#include "runner/grammar_masks.h"
#include "runner/kv_pages.h"
#include "runner/kv_prefault.h"
#include "runner/metered_ops.h"
#include "runner/model_reaper.h"
#include "runner/row_worker.h"
#include "runner/runner.h"
#include "runner/tokens_in_flight.h"

namespace millrace {

inline constexpr int32_t kMaxRowsPerStep = 512;   // rows that go through the layers together
inline constexpr int32_t kMaxLogitRows = 32;      // rows that go through the vocabulary head together
inline constexpr int32_t kMaxRunnerRows = 65536;  // the most that max_rows may ask for

// Sees the logits of a group of rows before they are sampled and scored, and may change them: tests compare and break
// them here.
// Called on the compute thread.
using LogitsHook = std::function<void(uint64_t step, std::span<const ReqId> requests, kernels::Rows logits)>;

struct ModelRunnerOptions {
  int threads = 0;              // of the compute pool; 0 = all CPUs that this process may use
  int32_t page_size = 16;       // tokens
  int32_t page_count = 0;       // see page_count_for()
  int32_t host_page_count = 0;  // of the host tier; 0: there is none
  DType kv_dtype = DType::kF32;
  int32_t context_length = 0;  // 0 = the model's own; never more than that
  int32_t max_rows = kMaxRowsPerStep;
  bool poison_pages = false;        // fresh pages hold NaN: for tests
  std::optional<kernels::Isa> isa;  // default: the best that runs here, or what MILLRACE_ISA says
  OpMeters* meters = nullptr;       // counts each operation; must outlive the runner, read it while no batch runs
  LogitsHook logits_hook;           // for tests
};

class ModelRunner final : public Runner {
 public:
  // The model must own all layers. kInvalidArgument or kUnsupported for options out of range, kResourceExhausted where
  // the pages do not fit in memory.
  static Result<std::unique_ptr<ModelRunner>> make(std::shared_ptr<const Model> model, ModelRunnerOptions options);
  ~ModelRunner() override;  // batches not yet computed are dropped

  RunnerFacts facts() const override;
  Status submit(Batch batch) override;
  std::optional<BatchResult> poll(int timeout_ms) override;
  uint64_t progress() const override { return pool_.motion(); }

  // Pages keep the keys and values that older weights wrote: the caller keys them by weight version. Old weights are
  // freed on another thread; while kMaxRetiredModels wait for that, no more are staged.
  Status stage(std::shared_ptr<const Model> model) override;
  void drop_staged() override;
  uint64_t staged_version() const override;
  std::shared_ptr<const Model> serving() const override;
  Status serve_staged() override;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  struct Job {
    Batch batch;
    std::shared_ptr<const Model> model;  // this step's weights
  };
  // A row of the part in hand that answers something: `target` is its place in score_targets, or kNone.
  struct LogitRow {
    int64_t row = 0;
    std::size_t sequence = 0;
    std::size_t target = kNone;
    bool sample = false;
  };
  // What the compute thread knows of each sequence of the batch in hand.
  struct SequenceState {
    std::size_t answer = kNone;  // its place in the result
    bool skipped = false;        // its token in flight never came, or no mask: nothing of it is computed
    grammar::TokenMask mask;     // of its next token, where a grammar asks for one
  };
  // How far the parts of a batch have come: tokens before `done` of this sequence, and all sequences before it.
  struct Cursor {
    std::size_t sequence = 0;
    std::size_t done = 0;
  };
  ModelRunner(std::shared_ptr<const Model> model, ModelRunnerOptions options, RunnerFacts facts, KvPages pages);

  void compute_main();
  bool next_job(BatchResult* result, Job& job);
  void wait_for_job(std::unique_lock<std::mutex>& lock);
  void switch_model();
  BatchResult run(Batch batch, const Model& model);
  void compute(const Batch& batch, const Model& model, BatchResult& result);
  void prepare(Batch& batch, BatchResult& result);
  void fill_part(const Batch& batch, Cursor& cursor);
  void add_logit_rows(const SequenceStep& step, std::size_t sequence, std::size_t done, std::size_t count);
  void compute_part(const Model& model);
  void answer_part(const Batch& batch, const Model& model, BatchResult& result);
  void answer_group(const Batch& batch, std::span<const LogitRow> rows, kernels::Rows logits, BatchResult& result);

  const ModelRunnerOptions options_;
  const RunnerFacts facts_;

  mutable std::mutex mutex_;
  std::condition_variable queue_changed_;     // the compute thread waits for it
  std::condition_variable finished_changed_;  // poll() waits for it
  std::deque<Batch> queued_;                  // guarded by mutex_, like the next five
  std::deque<BatchResult> finished_;
  std::shared_ptr<const Model> model_;   // serves
  std::shared_ptr<const Model> staged_;  // may be named by a batch
  int in_flight_ = 0;                    // submitted and not polled
  bool stopping_ = false;

  // Compute thread.
  ThreadPool pool_;
  std::unique_ptr<kernels::Ops> ops_;
  ModelReaper reaper_;
  KvPages pages_;
  KvPrefault prefault_;
  BatchCheck check_;
  Workspace workspace_;
  Buffer hidden_, logit_hidden_, logits_;
  std::vector<RowWorker> workers_;  // one for each worker of the pool
  TokensInFlight in_flight_tokens_;
  GrammarMasks masks_;
  std::optional<std::chrono::steady_clock::time_point> last_end_;  // of the batch before
  std::vector<SequenceState> states_;                              // of the batch in hand
  std::vector<Status> row_statuses_;                               // of the group of rows in hand
  std::vector<int32_t> tokens_, positions_;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<LogitRow> logit_rows_;
  std::vector<ReqId> requests_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace millrace
