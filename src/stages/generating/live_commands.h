// LiveCommands: the admin commands of an update that a trainer sends over a process group, of one generating engine.
//
//   kJoinGroup       joins; the reply comes when all ranks have
//   kReceiveWeights  checks names and shapes, begins to receive; the reply comes when the receive loop runs: "ready"
//   kAwaitWeights    the reply comes when the new weights are staged, or why they are not
//   kHoldWeights     the reply comes when what is staged serves or was dropped
//   kLeaveGroup      ends what uses the group
//
// Received weights are staged as those of a folder are: kSwitchWeights and kDropWeights are the same for both.
//
// Owner: WeightCommands. Thread safety: the worker's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stages/generating/bucket_receiver.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/group_member.h"
#include "stages/generating/weight_stager.h"
#include "wire/messages.h"

namespace millrace {

// What will make a model of received tensors and of `serving`, in the same form; an error: the tensors do not fit it,
// or the free memory does not hold them.
using MakeLiveWeights = std::function<Result<std::unique_ptr<LiveWeights>>(std::shared_ptr<const Model> serving,
                                                                           const std::vector<TensorSpec>& tensors)>;

inline constexpr uint64_t kLiveCommand = 0;  // no admin command has this number: what the stager makes for these

struct LiveOptions {
  MakeLiveWeights make;  // empty: no group is joined
  uint32_t replica = 0;
  std::string trainer_hosts;  // collective::AllowedHosts
  std::string why_fixed;      // why the stage takes no new weights, neither from a folder; empty: it takes some
};

class LiveCommands {
 public:
  using Reply = std::function<void(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights)>;

  // The others outlive it.
  LiveCommands(LiveOptions options, GeneratingEngine& engine, WeightStager& stager);

  static bool takes(wire::AdminAction action) {
    return action >= wire::AdminAction::kJoinGroup && action <= wire::AdminAction::kHoldWeights;
  }
  void begin(const wire::AdminRequest& command, const Reply& reply);
  // Of a stage whose weights stay as they are.
  Status refusal() const;
  // What is being received is of no use: the group is left, for its stream would be cut in the middle.
  void drop(uint64_t version);
  // The stager has ended a command of these.
  void on_made(const WeightStager::Made& made) {
    if (receiving_ && made.version == version_) received_ = made;  // else it was dropped meanwhile
  }
  // Replies to what has ended since. Called after every step.
  void settle(const Reply& reply);
  // How much of the weights that are received has come; nothing while there are none.
  void describe(std::vector<wire::Metric>& metrics) const;
  // Something will end without an event.
  bool waits() const { return member_.busy() || superseded_hold_ != 0 || ready_ != 0 || await_ != 0 || hold_ != 0; }

 private:
  // On what an update's next round builds, and the serving model else.
  Result<std::shared_ptr<const Model>> base_of(const WeightPlan& plan, uint64_t version) const;
  // Its trainer's group, or what reads a request's body: that one has no name.
  Result<std::shared_ptr<JoinedGroup>> source_of(const WeightPlan& plan) const;
  void leave_source();
  Status join(const wire::AdminRequest& command);
  Status receive(const wire::AdminRequest& command);

  const LiveOptions options_;
  GeneratingEngine& engine_;
  WeightStager& stager_;
  GroupMember member_;
  std::shared_ptr<JoinedGroup> receiving_;  // from kReceiveWeights on, until its weights were made or dropped
  std::shared_ptr<ReceiveProgress> progress_;
  uint64_t version_ = 0;                        // that is received
  std::optional<WeightStager::Made> received_;  // how the last receive ended, until kAwaitWeights asks
  std::shared_ptr<const Model> staged_;         // of version_, for the next round; null: that is not staged
  uint64_t superseded_hold_ = 0;                // its weights are those of the next round now
  uint64_t ready_ = 0;                          // the commands that wait; 0: none
  uint64_t await_ = 0;
  uint64_t hold_ = 0;
};

}  // namespace millrace
