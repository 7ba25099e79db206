// AdminOrders: the operator's commands to all stages or some of them. Each replica that is asked gives exactly one
// reply: its own, or kUnavailable where it is not there or dies, or kDeadline where it is silent. Then `done` is
// called, once, with all of them in the order of the replicas.
//
// Each message carries a number of its own, which is never used again. So a reply finds its replica by the number
// alone, and one that comes too late, twice, or from a zombie finds nothing.
//
// Owner: the coordinator. Thread safety: none. `done` is called from inside begin(), hear(), lost(), tick() and
// end_all(); it must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipeline/membership.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr std::size_t kMaxOpenOrders = 16;
inline constexpr int64_t kMaxOrderMs = 3'600'000;  // that a command may ask for
inline constexpr int64_t kReplyGraceMs = 1'000;    // a stage that waits as long as it may replies within this time more

struct PipelineOrder {
  wire::AdminAction action = wire::AdminAction::kFlushCache;
  std::string argument;
  std::vector<std::string> stages;  // all replicas of these; empty: of all stages
  int64_t timeout_ms = 0;
};

class AdminOrders {
 public:
  using Done = std::function<void(std::vector<wire::AdminReply>)>;
  using Send = std::function<Status(std::size_t replica, wire::Message& message)>;

  // A refused command (too many are open, an unknown stage) has one reply of the stage "coordinator", and nobody is
  // asked.
  void begin(PipelineOrder order, const Membership& members, const Send& send, Done done, int64_t now_ms);
  // False: nobody waits for it.
  bool hear(const wire::AdminReply& reply);
  void lost(std::size_t replica, const std::string& reason);
  void tick(int64_t now_ms);
  // What is missing is filled in with `status`.
  void end_all(const Status& status);

  std::size_t open() const { return orders_.size(); }
  std::size_t awaited() const { return awaited_.size(); }  // replies

 private:
  struct Order {
    int64_t deadline_ms = 0;
    int64_t timeout_ms = 0;
    std::size_t missing = 0;
    std::map<std::size_t, wire::AdminReply> replies;  // by replica
    Done done;
  };
  struct Asked {
    uint64_t order = 0;
    std::size_t replica = 0;
    std::string name;  // of the replica
  };
  using AskedIt = std::map<uint64_t, Asked>::iterator;

  AskedIt settle(AskedIt asked, const Status& status);

  uint64_t next_ = 1;  // of commands and of messages: one count
  std::map<uint64_t, Order> orders_;
  std::map<uint64_t, Asked> awaited_;  // by the number of the message
};

}  // namespace millrace
