// TextMember: one stage of a text pipeline over several hosts, where it runs: in a process that joined, or in a child
// of the leader.
//
// It registers at the leader until it is welcome, learns from the table of peers whom its stage speaks to, and then
// runs the stage. One socket hears everything for the stage; a thread of its own takes from it what is the membership's
// and passes on the rest, in order, so that the leader is heard while a model loads or a batch computes.
//
// An incarnation ends for good when it cannot be trusted any more: its lease is lost (the process was stopped, the
// leader refuses it), the leader is silent, or the connection to the next stage broke while that one lives on: then
// what was said last may be missing there. Its requests have failed then, or fail with that; whoever owns it makes
// another.
//
// Owner: a TextHost. Thread safety: one thread; ended() and status() from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "app/pipeline_place.h"
#include "app/text_link.h"
#include "app/text_plan.h"
#include "stages/stage.h"

namespace millrace {

inline constexpr int64_t kRegisterEveryMs = 250;
inline constexpr int64_t kMemberLeaseMs = 2000;   // where the Welcome names none
inline constexpr int64_t kSilentLeases = 3;       // nothing heard of the leader for so many: it is gone
inline constexpr int64_t kLinkPatienceMs = 3000;  // a next stage that died loses its lease within this time
inline constexpr int64_t kNoAnswerMs = 5000;      // between two words to a person about a leader that is silent

struct TextMemberPlan {
  const TextSeat* seat = nullptr;
  std::string speaks_to;  // the stage that gets what this one says; kCoordinatorStage: the leader's front
  uint64_t incarnation = 0;
  uint64_t identity = 0;  // TextIdentity::packed()
  // The stage itself; called once, before it runs.
  std::function<Result<std::unique_ptr<Stage>>(std::unique_ptr<Inbox>, std::shared_ptr<Outbox>)> make_stage;
};

class TextMember {
 public:
  enum class End : uint8_t {
    kNot,
    kShutdown,  // the leader wants it
    kOver,      // this incarnation; another one may join
    kFailed,    // for good: refused, or the stage itself ended
  };

  // `place` and `zmq` must outlive it. Errors: the socket's and those of make_stage.
  static Result<std::unique_ptr<TextMember>> make(TextMemberPlan plan, const PipelinePlace& place, ZmqContext& zmq);
  ~TextMember();  // wait()

  void start();
  End ended() const { return end_.load(); }
  // After it ended: why.
  Status status() const;
  const TextSeat& seat() const { return *plan_.seat; }

  void request_stop() { stop_.store(true); }
  // After request_stop(), or where it ended: whether all its threads have come to their ends.
  bool finished() const { return pump_done_.load() && stage_done_.load(); }
  void wait();
  const Stage& stage() const { return *stage_; }

 private:
  TextMember(TextMemberPlan plan, const PipelinePlace& place, ZmqContext& zmq);
  Status open();
  void run();
  void run_stage();
  void hear(wire::Message message);
  void hear(const wire::Welcome& message);
  void hear(const wire::Peers& table);
  void pass_on(wire::Message message);
  void tick(int64_t now_ms);
  void say_register(int64_t now_ms);
  void watch_lease(int64_t now_ms);
  void aim(const wire::Peer* peer);
  void end(End how, Status why);

  const TextMemberPlan plan_;
  const PipelinePlace& place_;
  ZmqContext& zmq_;
  std::unique_ptr<Inbox> inbox_;
  std::shared_ptr<Outbox> leader_, to_stage_;
  std::shared_ptr<TextLink> link_;
  std::unique_ptr<Stage> stage_;
  std::thread pump_, stage_thread_;
  std::atomic<End> end_{End::kNot};
  std::atomic<bool> stop_{false}, pump_done_{true}, stage_done_{true};
  mutable std::mutex mutex_;  // guards status_
  Status status_;

  // Of the pump's thread.
  uint64_t session_ = 0;  // of the leader; 0: not welcome yet
  int64_t lease_ms_ = kMemberLeaseMs;
  uint64_t epoch_ = 0;
  wire::Peer next_;  // that the link is aimed at; no endpoint: none
  int64_t next_register_ms_ = 0, next_word_ms_ = 0;
  int64_t heard_ms_ = 0;      // the leader
  int64_t started_ms_ = 0;    // the stage
  int64_t link_lost_ms_ = 0;  // 0: it is not
  bool told_taken_ = false;
  Status not_said_;  // why the last registration did not leave; OK: it did
};

}  // namespace millrace
