// WeightCommands: the admin commands about weights and pauses, of one generating engine. Staging and switching end
// later than they begin; their replies come from settle().
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "stages/generating/generating_engine.h"
#include "stages/generating/live_commands.h"
#include "stages/generating/snapshot_writer.h"
#include "stages/generating/weight_inspector.h"
#include "stages/generating/weight_stager.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kPausedTickMs = 20;  // how often a paused engine with requests looks for deadlines

class WeightCommands {
 public:
  using Deltas = GeneratingEngine::Deltas;
  using Reply = std::function<void(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights)>;

  // `make` empty: staging is refused; `write` empty: snapshots are. `engine` outlives it.
  WeightCommands(MakeWeights make, LiveOptions live, WriteSnapshot write, GeneratingEngine& engine);

  static bool takes(wire::AdminAction action) {
    return action >= wire::AdminAction::kStageWeights && action <= wire::AdminAction::kWriteWeights;
  }
  // To stage or switch to what serves already is done at once, where it has the wanted checksum; with another one, it
  // is refused. `out` gets the ends of requests that a policy aborts.
  void begin(const wire::AdminRequest& command, Deltas& out, const Reply& reply);
  // Replies to what has ended since. Called after every step.
  void settle(const Reply& reply);
  void describe(std::vector<wire::Metric>& metrics) const { live_.describe(metrics); }
  // Something will end without an event: ask again after kRestMs.
  bool waits() const { return stager_.busy() || switching_.command != 0 || live_.waits() || snapshots_.busy(); }

 private:
  Result<wire::WeightsReply> serving(const wire::AdminRequest& command) const;
  std::string drop(uint64_t version);
  void settle_switch(const Reply& reply);
  Result<std::string> inspect(const std::string& request);
  Status begin_snapshot(const wire::AdminRequest& command);
  Status begin_switch(const wire::AdminRequest& command, Deltas& out);

  const bool can_stage_;
  GeneratingEngine& engine_;
  WeightStager stager_;
  LiveCommands live_;
  WeightInspector inspector_;
  SnapshotWriter snapshots_;
  struct Switching {
    uint64_t command = 0;
    uint64_t version = 0;
  };
  Switching switching_;           // under way; command 0: none is
  uint32_t paused_requests_ = 0;  // that waited in a pause when it began
};

}  // namespace millrace
