// Pauses: whether the generating stages plan steps.
//
//   runs --pause()--> paused --resume()--> runs
//   runs --pause_when_idle()--> waits: nothing begins --nothing is in flight--> paused
//        ^--kPauseWaitMs are over, or another pause() or resume() came--'
//
// Where a pause fails on one replica, all of them continue. A resume that fails on one has resumed the others, so the
// stages count as running: a replica that is late has the command, and does it when it gets to it.
//
// Nothing begins while a pause_when_idle() waits or has not got its replies: the next one may wait by then, and then
// its hold goes on.
//
// Owner: WeightUpdates. Thread safety: all functions from any thread, tick() from the coordinator's alone; replies come
// on the coordinator's thread. Nothing of the environment is called with mutex_; hold() with hold_mutex_, and must not
// call back.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/admin_commands.h"
#include "stages/weight_control.h"

namespace millrace {

inline constexpr int64_t kPauseMs = 30'000;         // for the replies of the stages
inline constexpr int64_t kPauseJoinedMs = 600'000;  // for that of a replica that has just started

class Pauses {
 public:
  using Done = WeightControl::Done;

  struct Env {
    std::function<void(PipelineCommand, AdminCommands::Done)> command;
    // True: requests that have not begun wait, until false.
    std::function<void(bool)> hold;
    // Requests that have begun and not ended.
    std::function<std::size_t()> in_flight;
  };
  struct State {
    bool paused = false;
    bool pausing = false;  // pause_when_idle() waits
  };

  // `stages`: those that generate; none: everything is refused.
  Pauses(std::vector<std::string> stages, Env env) : stages_(std::move(stages)), env_(std::move(env)) {}

  // As in WeightControl.
  void pause(wire::InFlightPolicy policy, Done done);
  void pause_when_idle(Done done);
  void resume(Done done);

  // A replica of one of the stages has started: in a pause it is paused before its first request. While a pause or
  // resume awaits its replies, it gets the state that is being reached, and with the replies the one that was.
  void on_joined(const std::string& stage, uint32_t replica);
  void tick(int64_t now_ms);
  State state() const;

 private:
  using Target = std::pair<std::string, std::optional<uint32_t>>;  // stage and replica; none: all of the stage

  struct Wanted {
    uint64_t number = 0;  // of the command, in the sequence in which they were sent
    bool paused = false;
    wire::InFlightPolicy policy{};
  };

  void set_paused(bool paused, PipelineCommand command, Done done);
  void on_replies(const Wanted& wanted, const std::vector<wire::AdminReply>& replies);
  // The state that is being reached, or the one that is.
  const Wanted& target_locked() const { return under_way_ > 0 ? next_ : state_; }
  void send_state(const Target& target);
  void send_unsent();
  void supersede(const char* by);
  void update_hold();

  const std::vector<std::string> stages_;
  const Env env_;

  std::mutex hold_mutex_;  // taken before mutex_
  bool held_ = false;      // by hold_mutex_

  mutable std::mutex mutex_;  // guards what follows
  Wanted state_;              // of the newest command that took effect
  Wanted next_;               // of the newest command
  int under_way_ = 0;         // pause and resume commands whose replies have not come
  bool failed_ = false;       // one of them has failed on a replica
  std::set<Target> joined_;   // since the first of them
  std::set<Target> unsent_;   // whose command was refused, as too many were open: the next tick sends it
  Done waiting_;              // of pause_when_idle()
  uint64_t waits_ = 0;        // that have begun: the number of the one that waits
  int64_t by_ms_ = 0;         // then it fails; 0: no tick has come since it began
  int sent_ = 0;              // pause_when_idle() whose replies have not come
};

}  // namespace millrace
