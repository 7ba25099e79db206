// TextLeader: who a text pipeline over several hosts belongs to. It hears the stages that join, holds their leases by
// their heartbeats (pipeline/membership.h), and tells everybody where the others are. A stage of another host that is
// lost is awaited; its next incarnation may be another process, or another machine.
//
// What goes round in the pipeline does not come here: tokens and texts travel from stage to stage. Who joins must have
// the same pipeline file and the same model (app/text_identity.h); others are refused, and both sides say why.
//
// Over each connection from here to a stage go its membership and its requests, in order: so a stage knows of the next
// one before it hears of a request for it.
//
// Owned by the Backend. Thread safety: start() and stop() from one thread, expect() and down() from any. The events are
// called on the leader's own thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/pipeline_place.h"
#include "app/text_identity.h"
#include "app/text_plan.h"
#include "pipeline/membership.h"

namespace millrace {

inline constexpr int kLeaderTickMs = 50;              // how late a lease's end or a lost connection may be noticed
inline constexpr int64_t kLeaderGraceMs = 500;        // that stages have to end by themselves when the leader does
inline constexpr std::size_t kMaxStrangerDoors = 64;  // doors to those that were refused

struct TextLeaderEvents {
  // `outbox`: to the stage, at its own address.
  std::function<void(const TextSeat&, uint64_t incarnation, const std::shared_ptr<Outbox>& outbox)> joined;
  std::function<void(const TextSeat&, const std::string& why)> lost;
  std::function<void(wire::StageStatus)> beat;  // of a member
};

class TextLeader {
 public:
  // `self`: the part of the pipeline in this process that other processes speak to. The spec, the plan, the place and
  // zmq must outlive it. Binds the place's coordinator(): kUnavailable where somebody has it.
  static Result<std::unique_ptr<TextLeader>> make(const PipelineSpec& spec, const TextPlan& plan,
                                                  const PipelinePlace& place, ZmqContext& zmq, TextIdentity identity,
                                                  wire::Peer self, TextLeaderEvents events);
  ~TextLeader();  // stop()

  void start();
  // Tells the members to end. Idempotent.
  void stop();
  // A child process of ours is about to have this seat: nobody else may take it now.
  void expect(const TextSeat& seat, uint64_t incarnation);
  // It is gone, or hangs. nullopt: whoever has the seat now. The seat's loss is told even where nobody had it.
  void down(const TextSeat& seat, std::optional<uint64_t> incarnation, std::string why);

 private:
  struct Order {
    const TextSeat* seat = nullptr;
    std::optional<uint64_t> incarnation;
    std::string down;  // why; empty: it is expected
  };

  TextLeader(const TextPlan& plan, const PipelinePlace& place, ZmqContext& zmq, TextIdentity identity,
             std::unique_ptr<Inbox> inbox, Membership members, TextLeaderEvents events);
  void run();
  void obey();
  void hear(wire::Message message);
  void hear(wire::Register message);
  void hear(wire::StageStatus status);
  Status may_join(const wire::Register& message) const;
  void refuse(const wire::Register& message, const Status& why);
  void watch_links();
  void pump();
  void joined(std::size_t seat, uint64_t incarnation);
  void lost(std::size_t seat, const std::string& why);
  void say(const MembershipMessage& message);
  const TextSeat& seat_at(std::size_t index) const;

  const TextPlan& plan_;
  const PipelinePlace& place_;
  ZmqContext& zmq_;
  const TextLeaderEvents events_;
  std::unique_ptr<Inbox> inbox_;
  std::thread thread_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // guards orders_
  std::vector<Order> orders_;

  // Of its thread.
  TextIdentity identity_;  // its weights: ours, else those of the first stage that brought some
  Membership members_;
  std::vector<std::shared_ptr<Outbox>> outboxes_;             // to the members, by seat
  std::map<std::string, std::shared_ptr<Outbox>> strangers_;  // to those that are none
};

}  // namespace millrace
