// Front: the Engine that serves. It knows every live request, sends it on its way and hands its news to its sink.
//
// Way of a request: submit() -> tokenizer stage -> scheduler's inbox; what comes back arrives in the front's one inbox
// (text deltas, heartbeats of all stages). The front is where "one request, one end" is kept against the world: a stage
// that dies ends its requests here (fail_all), a deadline ends them here, and news of an ended request is ignored.
//
// Owned by app/. Thread safety: run() on the front's thread; everything else from any thread. Lock order: table, then
// entry.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "stages/engine.h"
#include "stages/stage.h"
#include "stages/tokenizer_stage.h"

namespace millrace {

struct FrontOptions {
  int32_t max_requests = 4096;      // live ones, the queue included; more are refused with kResourceExhausted
  int64_t request_timeout_s = 600;  // from submit to finish; then kDeadline
};

class Front : public Engine, public Stage {
 public:
  Front(FrontOptions options, ModelFacts model, TokenizerStage& tokenizer, std::unique_ptr<Inbox> inbox);

  // The way to the scheduler, and who it is: heartbeats of another incarnation are from a dead process and are ignored.
  void connect_scheduler(std::shared_ptr<Outbox> scheduler, uint64_t incarnation);
  // A stage died or is gone: every live request ends with kUnavailable and this reason; not ready until it is heard
  // again.
  void stage_down(const std::string& stage, const std::string& reason);
  // Which incarnation of a stage is expected from now on.
  void expect_stage(const std::string& stage, uint64_t incarnation);
  // Nothing new is accepted; what runs goes on.
  void drain() { draining_.store(true); }
  // Waits until no request is live or the time is over; then ends what is left with kUnavailable. True: all ended well.
  bool wait_idle(int timeout_ms);
  std::size_t live_requests() const;

  void run() override;

  // Engine
  ReqId submit(GenerateRequest request, Sink sink) override;
  void abort(ReqId id) override;
  void cancel(ReqId id) override;
  void admin(wire::AdminAction action, std::string argument, int64_t timeout_ms,
             std::function<void(std::vector<wire::AdminReply>)> done) override;
  std::string token_bytes(int32_t id) const override { return tokenizer_.token_bytes(id); }
  void tokenize(Prompt prompt, std::function<void(Result<TokenizeReply>)> done) override;
  void detokenize(std::vector<int32_t> ids, bool skip_special_tokens,
                  std::function<void(Result<std::string>)> done) override;
  const ModelFacts& model() const override { return model_; }
  Health health() const override;

 private:
  struct Entry {
    std::mutex mutex;  // one sink call at a time
    Sink sink;
    bool ended = false;
    bool sent =
        false;  // guarded by the table's mutex; the scheduler knows it: an early end must be followed by an abort
    int64_t deadline_ms = 0;
  };
  struct StageView {
    wire::StageStatus status;
    uint64_t expected = 0;  // incarnation
    int64_t heard_ms = 0;   // 0: never
  };

  std::shared_ptr<Entry> find(ReqId id) const;
  void deliver(const wire::TextDelta& delta);
  void end(ReqId id, const Status& status);
  void tokenized(ReqId id, GenerateRequest request, Result<std::vector<int32_t>> ids);
  Status resolve_lengths(const GenerateRequest& request, wire::TokenizedRequest& out) const;
  void send_abort(ReqId id);
  void end_all(const Status& status);
  void sweep();
  std::string why_not_ready() const;

  const FrontOptions options_;
  const ModelFacts model_;
  TokenizerStage& tokenizer_;
  std::unique_ptr<Inbox> inbox_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> next_id_{1};

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<ReqId, std::shared_ptr<Entry>> table_;
  std::map<std::string, StageView> stages_;
  std::shared_ptr<Outbox> scheduler_;
  std::vector<ReqId> unsent_aborts_;  // the scheduler's inbox was full: said again at the next sweep
};

}  // namespace millrace
