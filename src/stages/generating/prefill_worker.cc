// prefill: computes prompts for another stage and draws nothing: a GeneratingEngine whose requests are the wants of
// other servers. It gets no payloads; its weights, pauses and flushes are those of every generating stage.
#include <atomic>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "stages/generating/state_json.h"
#include "stages/generating/weight_commands.h"
#include "stages/generating/workers.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr uint64_t kFirstJob = uint64_t{1}
                               << 63;  // in the state that operators read, no job looks like a client's request
constexpr int kListenMs = 20;          // idle, it waits so long for a want; the coordinator's commands wait as long

class PrefillWorker final : public Worker {
 public:
  explicit PrefillWorker(PrefillParts parts) : parts_(std::move(parts)) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Runner> runner, parts_.load(progress));
    engine_.emplace(parts_.options, std::move(runner));
    weights_.emplace(parts_.make_weights, parts_.live, parts_.write_snapshot, *engine_);
    transfer::PrefillJobs jobs;
    jobs.begin = [this](uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key) {
      begin(job, tokens, extra_key);
    };
    jobs.cancel = [this](uint64_t job) { engine_->scheduler().abort(id_of(job), out_); };
    ASSIGN_OR_RETURN(transfers_, parts_.make_transfers(*engine_, std::move(jobs)));
    return ok_status();
  }

  void start(ReqId id, Value, Emit& emit) override {
    emit.fail(id, error(StatusCode::kUnsupported, "a payload came to a stage that computes prompts, which takes none"));
  }
  void drop(ReqId) override {}
  void on_lease_lost() override { engine_->scheduler().resume(); }

  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    if (WeightCommands::takes(command.action)) return weights_->begin(command, out_, weights_reply_to(emit));
    if (command.action == wire::AdminAction::kShowState) {
      return emit.reply(command.id, state_json(engine_->scheduler().snapshot(), {}));
    }
    if (command.action != wire::AdminAction::kFlushCache) return Worker::admin(command, now_ms, emit);
    const Status status = engine_->flush_when_idle(command.id, now_ms + std::max<int64_t>(command.timeout_ms, 0));
    if (!status.ok()) emit.reply(command.id, status);
  }

  bool describe(wire::StageStatus& status) const override {
    engine_->describe(status);
    status.text_checksum = parts_.text_checksum;
    weights_->describe(status.metrics);
    transfers_->describe(status.metrics);
    return true;
  }

  std::optional<Pulse> pulse() const override {
    return Pulse{.busy = busy_.load(std::memory_order_relaxed),
                 .progress = steps_.load(std::memory_order_relaxed) + engine_->runner_progress()};
  }

  void drain() override { drains_.store(true, std::memory_order_release); }
  bool holds() const override { return holds_.load(std::memory_order_acquire); }

  // Nothing else wakes it for a want: it waits at the transfers' inbox, and is called again at once.
  int tick(int64_t now_ms, Emit& emit) override {
    if (drains_.load(std::memory_order_acquire)) transfers_->exports().drain();
    const bool rests = !busy_.load(std::memory_order_relaxed) && !weights_->waits();
    transfers_->receive(!rests ? 0 : transfers_->waits() ? transfer::kTransferRestMs : kListenMs, now_ms);
    now_ms = monotonic_ms();
    // While the batch computes, layers are sent as they are stored.
    const bool busy = engine_->step(out_, transfers_->waits() ? transfer::kTransferRestMs : kStepPollMs);
    report_ends();
    transfers_->step(now_ms);
    engine_->settle_flushes(
        now_ms, [&emit](uint64_t command, const Result<std::string>& reply) { emit.reply(command, reply); });
    weights_->settle(weights_reply_to(emit));
    holds_.store(transfers_->exports().open() > 0, std::memory_order_release);
    // Not Scheduler::busy(), which is true during a whole pause: there is no work until it ends.
    busy_.store(busy || std::exchange(begun_, false), std::memory_order_relaxed);
    steps_.store(engine_->scheduler().facts().steps, std::memory_order_relaxed);
    return 0;
  }

 private:
  static WeightCommands::Reply weights_reply_to(Emit& emit) {
    return [&emit](uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights) {
      emit.reply(command, reply, weights);
    };
  }

  static ReqId id_of(uint64_t job) { return ReqId{kFirstJob + job}; }

  // Nothing is drawn: the request ends when its last row is computed.
  void begin(uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key) {
    wire::TokenizedRequest request{.id = id_of(job), .prompt = tokens};
    request.sampling.max_tokens = 0;
    request.extra_key = extra_key;
    engine_->scheduler().receive(std::move(request), out_);
    begun_ = true;
  }

  void report_ends() {
    for (const wire::TokenDelta& delta : std::exchange(out_, {})) {
      if (!delta.finish) continue;
      const bool failed = delta.finish->reason == wire::FinishReason::kError;
      transfers_->exports().on_job_end(delta.id.value - kFirstJob,
                                       failed ? Status(delta.finish->code, delta.finish->message) : ok_status());
    }
  }

  const PrefillParts parts_;
  std::optional<GeneratingEngine> engine_;  // from load() on, as the next ones
  std::optional<WeightCommands> weights_;
  // Ends of jobs, until report_ends(). Before transfers_, whose destructor cancels jobs, which end here.
  GeneratingEngine::Deltas out_;
  std::unique_ptr<transfer::TransferService> transfers_;
  bool begun_ = false;             // a job, since the last step
  std::atomic<bool> busy_{false};  // for pulse(), as the next one
  std::atomic<uint64_t> steps_{0};
  std::atomic<bool> drains_{false};
  std::atomic<bool> holds_{false};  // transfers are open
};

}  // namespace

std::unique_ptr<Worker> make_prefill_worker(PrefillParts parts) {
  return std::make_unique<PrefillWorker>(std::move(parts));
}

}  // namespace millrace
