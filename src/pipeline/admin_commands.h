// AdminCommands: the operator's commands to all stages or some of them. Each replica that is asked gives exactly one
// reply: its own, or kUnavailable where it is not a member or is lost, or kDeadline where it is silent. Then `done` is
// called, once, with all of them in the order of the replicas.
//
// A command about weights waits for no replica that stands still while another one is well: it gets its weights when it
// is back (pipeline/weight_updates.h). One about a trainer's update waits for none that has sent no heartbeat for
// kFrozenReplicaMs.
//
// A command may end with its first failure. The others have kOtherRepliesMs then, for one may know the cause: a lost
// replica shows first at those that wait for it. What is missing after that is filled in with kCancelled.
//
// Each message carries a number of its own, which is never used again, by no session. So a reply finds its replica by
// the number alone, and one that comes too late, twice, from a fenced process, or to an earlier server finds nothing.
//
// Owner: the coordinator. Thread safety: none. `done` is called from inside begin(), on_reply(), on_lost(), tick() and
// end_all(); it must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pipeline/membership.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr std::size_t kMaxOpenCommands = 16;
inline constexpr int64_t kMaxCommandMs = 3'600'000;  // that a command may ask for
inline constexpr int64_t kFrozenReplicaMs = 60'000;  // without a heartbeat: a trainer's update goes on without it
inline constexpr int64_t kOtherRepliesMs = 1'000;    // after a failure that ends the command
inline constexpr int64_t kReplyGraceMs = 1'000;      // a stage that uses all of its time replies within this time more

inline constexpr char kCoordinatorName[] = "coordinator";  // the stage of a reply to a command that was refused

struct PipelineCommand {
  wire::AdminAction action = wire::AdminAction::kFlushCache;
  std::string argument;
  std::vector<std::string> stages;  // all replicas of these; empty: of all stages
  int64_t timeout_ms = 0;
  uint64_t weight_version = 0;  // this and the next three as in wire::AdminRequest
  wire::InFlightPolicy policy = wire::InFlightPolicy::kInPlace;
  bool flush_cache = false;
  uint64_t weights_checksum = 0;
  std::optional<uint32_t> replica;  // this one alone
  // The first failure ends it. That a replica is lost is a failure for those below `needed` alone.
  bool ends_early = false;
  uint32_t needed = 0;
};

class AdminCommands {
 public:
  using Done = std::function<void(std::vector<wire::AdminReply>)>;
  using Send = std::function<Status(std::size_t slot, wire::Message& message)>;
  // The replica has flushed its cache, or has other weights.
  using Flushed =
      std::function<void(std::size_t slot, const PipelineCommand& command, const wire::WeightsReply& weights)>;

  AdminCommands(const Membership& members, Send send, Flushed flushed);

  // A refused command (too many are open, an unknown stage) has one reply of the stage kCoordinatorName, and no stage
  // is asked.
  void begin(PipelineCommand command, Done done, int64_t now_ms);
  void on_reply(const wire::AdminReply& reply);
  void on_lost(std::size_t slot, const std::string& reason);
  void tick(int64_t now_ms);
  // What is missing is filled in with `status`.
  void end_all(const Status& status);

  std::size_t open() const { return commands_.size(); }
  uint64_t late() const { return late_; }  // replies that were not awaited

 private:
  struct Command {
    PipelineCommand wanted;
    int64_t deadline_ms = 0;
    std::size_t missing = 0;
    Status failure;                                   // that ends it early
    bool ending = false;                              // its deadline was moved for that
    std::map<std::size_t, wire::AdminReply> replies;  // by slot
    Done done;
  };
  struct Asked {
    uint64_t command = 0;
    std::size_t slot = 0;
  };
  using AskedIt = std::map<uint64_t, Asked>::iterator;

  Status check(const PipelineCommand& command) const;
  Status may_ask(const PipelineCommand& command, const ReplicaView& view) const;
  bool any_ready(const PipelineCommand& command) const;
  std::size_t rank_of(const PipelineCommand& command, std::size_t slot) const;
  bool waits_for_standing(const Command& command) const;
  void add_reply(Command& command, std::size_t slot, wire::AdminReply reply);
  bool is_frozen(const Command& command, const ReplicaView& view, int64_t now_ms) const;
  Status status_at(const Asked& asked, const std::set<uint64_t>& only_standing, int64_t now_ms) const;
  AskedIt settle(AskedIt asked, const wire::AdminReply& reply);
  void settle_if(const std::function<Status(const Asked& asked)>& status_of);
  void finish();

  const Membership& members_;
  const Send send_;
  const Flushed flushed_;
  uint64_t next_;  // of commands and of messages: one count
  uint64_t late_ = 0;
  std::map<uint64_t, Command> commands_;
  std::map<uint64_t, Asked> awaited_;  // by the number of the message
};

}  // namespace millrace
