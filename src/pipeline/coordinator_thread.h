// CoordinatorThread: a coordinator on a thread of its own, for many client threads.
//
// The core is under one lock. Sinks, replies to commands and the supervisor are called without it, on the coordinator's
// thread, in sequence, so a sink may take locks of its own; a request's inputs are copied into a relay without it, on
// the thread that submits them. A sink that answered kFull gets the same event again with the next round; when it takes
// nothing for kSlowClientMs after its request ended otherwise, the rest is dropped, and its end is an error.
//
// Owned by app/. Thread safety: run() on the coordinator's thread; everything else from any thread. A sink must not
// block, and may call abort() alone of all this. After abort() has returned, one event that was under way may arrive.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "control/mailbox.h"
#include "pipeline/coordinator.h"
#include "stages/stage.h"

namespace millrace {

inline constexpr int64_t kSlowClientMs = 60'000;
inline constexpr int kMaxBatch = 64;  // messages under one lock

class CoordinatorThread : public Stage {
 public:
  // All but the inbox are the caller's and must outlive it. `payloads` gives on any thread, and wakes the inbox's
  // waker.
  CoordinatorThread(const PipelineSpec& spec, const Library& library, CoordinatorOptions options, CoordinatorEnv& env,
                    Payloads& payloads, std::unique_ptr<Inbox> inbox);

  void run() override;

  // The sink gets a refusal, as every event, on the coordinator's thread. The inputs are copied on this one, without
  // the lock; the request may end meanwhile.
  ReqId submit(const Value& inputs, SubmitOptions options, RequestSink sink);
  // As in Coordinator; the status of a prompt that could not be made ends the request.
  void set_prompt(ReqId id, Result<wire::TokenizedRequest> request, const PlacementHint& hint);
  bool is_live(ReqId id) const { return locked().core.is_live(id); }
  void cancel(ReqId id);
  void abort(ReqId id);
  // `done` is called once, on the coordinator's thread.
  void admin(PipelineCommand command, AdminCommands::Done done);

  // As in Membership.
  void require_weights(const std::vector<std::string>& stages, RequiredWeights weights) {
    locked().core.require_weights(stages, weights);
  }
  void accept_weights(const std::vector<std::string>& stages, RequiredWeights next) {
    locked().core.accept_weights(stages, next);
  }
  void note_weights(const StageReplica& replica, std::string note) {
    locked().core.note_weights(replica, std::move(note));
  }
  KnownWeights known_weights() const { return locked().core.members().known_weights(); }
  std::vector<StaleReplica> stale_replicas() const { return locked().core.members().stale(); }
  // As in Coordinator.
  void hold(bool held);
  std::size_t running() const { return locked().core.running(); }
  void drain() { locked().core.drain(); }
  // Waits until nothing is live or the time is over; then ends what is left with kUnavailable. True: all ended well.
  bool wait_idle(int timeout_ms);
  void shut_down(int64_t grace_ms, bool joined) { locked().core.shut_down(grace_ms, joined); }
  void expect(const std::string& stage, uint32_t replica, uint64_t incarnation) {
    locked().core.expect(stage, replica, incarnation);
  }
  void down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason);

  Health health() const { return locked().core.health(); }
  CoordinatorBooks books() const { return locked().core.books(); }

 private:
  struct Client {
    RequestSink sink;
    std::atomic<bool> full{false};    // its sink answered so, and `held` waits for it
    std::atomic<bool> closed{false};  // aborted: it gets nothing more
    // Of the coordinator's thread:
    std::deque<RequestEvent> held;
    int64_t held_until_ms = 0;  // once the end is among them
  };
  struct PendingEvent {
    std::shared_ptr<Client> client;
    RequestEvent event;
  };
  // Puts off what must not be called under the lock.
  class DeferredEnv : public CoordinatorEnv {
   public:
    DeferredEnv(CoordinatorThread& owner, CoordinatorEnv& inner) : owner_(owner), inner_(inner) {}
    std::shared_ptr<Outbox> open(const std::string& endpoint) override { return inner_.open(endpoint); }
    void joined(const ReplicaView& replica) override;
    void lost(const ReplicaView& replica, const std::string& reason) override;
    void ticked(int64_t now_ms) override { inner_.ticked(now_ms); }

   private:
    CoordinatorThread& owner_;
    CoordinatorEnv& inner_;
  };
  // The core with the lock held, for one expression.
  template <typename Core>
  struct Locked {
    std::lock_guard<std::mutex> lock;
    Core& core;
  };
  Locked<Coordinator> locked() { return {std::lock_guard(mutex_), core_}; }
  Locked<const Coordinator> locked() const { return {std::lock_guard(mutex_), core_}; }

  SinkAnswer push(const std::shared_ptr<Client>& client, RequestEvent& event);
  void deliver();
  void deliver(Client& client, RequestEvent& event);
  void retry_held();
  bool deliver_held(Client& client);

  std::unique_ptr<Inbox> inbox_;
  std::shared_ptr<Waker> waker_;
  DeferredEnv env_;
  Payloads& payloads_;

  mutable std::mutex mutex_;  // guards what follows
  Coordinator core_;
  std::unordered_map<ReqId, std::shared_ptr<Client>> clients_;
  std::vector<PendingEvent> events_;
  std::vector<std::function<void()>> calls_;

  // Of the coordinator's thread:
  std::vector<PendingEvent> delivering_;  // empty between two rounds; kept for its capacity
  std::unordered_map<ReqId, std::shared_ptr<Client>> held_;
};

}  // namespace millrace
