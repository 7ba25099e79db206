// Front: the Engine that serves. It knows every live request, sends it on its way and hands its news to its sink.
//
// Way of a request: submit() -> tokenizer stage -> scheduler's inbox; what comes back arrives in the front's one inbox
// (text deltas, heartbeats of all stages). The front is where "one request, one end" is kept against the world: a stage
// that dies ends its requests here, a deadline ends them here, and news of an ended request is ignored.
//
// There may be several equal schedulers (replicas). A router says which one a request goes to; one that dies ends its
// own requests alone, and the others go on. The front is ready while the detokenizer and at least one replica are.
//
// front.cc holds the requests' part, front_stages.cc the stages' health, front_orders.cc what the operator orders.
//
// Owned by app/. Thread safety: run() on the front's thread; everything else from any thread. Lock order: table, then
// entry.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "stages/engine.h"
#include "stages/profile_recorder.h"
#include "stages/replica_router.h"
#include "stages/stage.h"
#include "stages/tokenizer_stage.h"

namespace millrace {

inline constexpr int kMaxPendingOrders = 16;              // of the operator, at one time
inline constexpr int64_t kMaxAdminTimeoutMs = 3'600'000;  // that an order may ask for

struct FrontOptions {
  int32_t max_requests = 4096;      // live ones, the queue included; more are refused with kResourceExhausted
  int64_t request_timeout_s = 600;  // from submit to finish; then kDeadline
  int64_t queue_timeout_ms = 0;     // from the scheduler's acceptance to the first step; 0: none but the request's own
  int replicas = 1;                 // equal schedulers, 1 to kMaxReplicas
  ReplicaPolicy replica_policy = ReplicaPolicy::kPrefixAware;
  int64_t restart_after_s = 120;  // a stage that is stalled or silent for so long is reported as hung; 0: never
  std::string profile_folder;     // of the traces; empty: the user's own
};

// "scheduler" where there is one, else "scheduler-0" and so on.
std::string replica_name(int replica, int replicas);

class Front : public Engine, public Stage {
 public:
  Front(FrontOptions options, ModelFacts model, TokenizerStage& tokenizer, std::unique_ptr<Inbox> inbox);

  ~Front() override;

  // The way to a scheduler, and who it is: heartbeats of another incarnation are from a dead process and are ignored.
  void connect_scheduler(std::shared_ptr<Outbox> scheduler, uint64_t incarnation, int replica = 0);
  // A stage died or is gone: the live requests that need it end with kUnavailable and this reason (those of one
  // scheduler of several; else all); it does not serve until it is heard again.
  void stage_down(const std::string& stage, const std::string& reason);
  // Which incarnation of a stage is expected from now on.
  void expect_stage(const std::string& stage, uint64_t incarnation);
  // What /ready says of a stage that was never there: why.
  void await_stage(const std::string& stage, const std::string& why);
  // Any incarnation of the stage was ready to serve.
  bool was_ready(const std::string& stage) const;
  // A heartbeat that came another way than through the inbox.
  void hear(wire::StageStatus status);
  // Called on the front's thread, once for each incarnation that hangs (FrontOptions::restart_after_s). Set before
  // run().
  using Hung = std::function<void(const std::string& stage, uint64_t incarnation, const std::string& how)>;
  void on_hung(Hung hung) { hung_ = std::move(hung); }
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
    int64_t deadline_ms = 0;
    int64_t timeout_ms = 0;  // that the deadline is made of, for its message
    // Guarded by the table's mutex; they stay as they are once the entry has left the table.
    int replica = -1;    // the scheduler that knows it: an early end must be followed by an abort. -1: none yet
    int64_t prompt = 0;  // tokens
    int64_t tokens = 0;  // counted in the router's load
  };
  struct StageView {
    wire::StageStatus status;
    uint64_t expected = 0;   // incarnation
    int64_t heard_ms = 0;    // 0: never
    int64_t since_ms = 0;    // of the present state, or of the start where it was never heard
    bool told_hung = false;  // of this incarnation
  };
  struct Replica {
    std::string name;
    std::shared_ptr<Outbox> outbox;    // null: it was never there; of a dead one, aborts may still go there
    bool up = false;                   // gets requests
    std::vector<ReqId> unsent_aborts;  // its inbox was full: said again at the next sweep
  };
  using OrderDone = std::function<void(std::vector<wire::AdminReply>)>;
  // An order on its way: who has not answered yet, and what the others said.
  struct Order {
    wire::AdminAction action = wire::AdminAction::kFlushCache;
    int64_t deadline_ms = 0;
    std::set<std::string> waiting;
    std::vector<wire::AdminReply> replies;
    OrderDone done;
  };

  // front.cc
  std::shared_ptr<Entry> take(const wire::TextDelta& delta);
  void leave(Entry& entry);
  void deliver(const wire::TextDelta& delta);
  void end(ReqId id, const Status& status);
  void tokenized(ReqId id, GenerateRequest request, Result<std::vector<int32_t>> ids);
  bool is_live(ReqId id) const;
  Status resolve_lengths(const GenerateRequest& request, wire::TokenizedRequest& out) const;
  Result<int> choose_replica(const GenerateRequest& request, const ReplicaRouter::Prefix& prefix);
  void send_abort(int replica, ReqId id);
  void end_all(const Status& status, std::optional<int> replica = std::nullopt);
  void sweep();
  void forgive_gap(int64_t now_ms);
  std::optional<int32_t> outside_vocabulary(const wire::TextDelta& delta) const;

  // front_stages.cc
  std::string why_silent(const std::string& name, const StageView& view) const;
  std::string why_not_ready() const;
  bool serves(const Replica& replica) const;
  std::vector<bool> serving() const;
  void report_hung();

  // front_orders.cc
  Status begin_order(wire::AdminRequest& request, Order& order);
  void send_order(const wire::AdminRequest& request, Order& order);
  void hear_reply(wire::AdminReply reply);
  void answer_for(const std::string& stage, const std::string& reason);
  void finish_orders(bool all = false);
  void finish_order(uint64_t id, Order order);

  const FrontOptions options_;
  const ModelFacts model_;
  TokenizerStage& tokenizer_;
  std::unique_ptr<Inbox> inbox_;
  Hung hung_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> next_id_{1};

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<ReqId, std::shared_ptr<Entry>> table_;
  std::map<std::string, StageView> stages_;
  std::set<std::string> were_ready_;  // stages, once and for all
  std::vector<Replica> replicas_;
  ReplicaRouter router_;
  uint64_t next_order_ = 1;
  std::map<uint64_t, Order> orders_;
  ProfileRecorder profile_;

  int64_t swept_ms_ = 0;        // the front's thread alone
  std::thread profile_writer_;  // of the front's thread, which alone starts and joins it
};

}  // namespace millrace
