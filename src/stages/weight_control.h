// WeightControl: what the api asks about the weights of a running pipeline: updates, pauses, versions. docs/weights.md
// describes it for users.
//
// A version is a number that the engine draws; its label is the trainer's name for it, or the number.
//
// Owner: its PipelineEngine. Thread safety: all functions from any thread. `done` is called once, perhaps from inside,
// and must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "stages/weight_plan.h"
#include "wire/messages.h"

namespace millrace {

struct DiskUpdate {
  std::string path;   // a model folder, as the stages' hosts see it
  std::string label;  // empty: the number of the new version
  wire::InFlightPolicy policy = wire::InFlightPolicy::kInPlace;
  bool flush_cache = true;
};

// What ends an update that a trainer has sent.
inline constexpr int64_t kCompleteMs = 300'000;  // that /complete_weights_update waits for the last byte

inline constexpr int64_t kPauseWaitMs = 300'000;  // that pause_when_idle() waits

struct LiveCompletion {
  std::string group;
  std::string label;  // empty: the number of the new version
  wire::InFlightPolicy policy = wire::InFlightPolicy::kInPlace;
  bool flush_cache = false;
  // False: nothing switches, and prepare() may announce more of the same update.
  bool last = true;
  int64_t timeout_ms = 0;  // to wait for the last byte, then kDeadline and the update goes on; 0: the update's limits
};
struct LiveUpdated {
  std::size_t buckets = 0;  // received, of all rounds
  std::string label;        // of the version that serves now
};

// Of weights that a trainer sent.
struct WeightsSnapshot {
  uint64_t version = 0;  // of the newest one; 0: there is none
  std::string path;      // as the stages' hosts see it
  std::string error;     // why there is none of the weights that serve
};

// Of this moment, for status requests and metrics.
struct WeightsState {
  enum class Phase : uint8_t { kIdle = 0, kStaging = 1, kSwitching = 2, kReceiving = 3, kStaged = 4 };
  Phase phase = Phase::kIdle;
  uint64_t version = 1;  // that serves
  std::string label;
  bool paused = false;
  bool pausing = false;  // pause_when_idle() waits
  double seconds = 0;    // of the update under way
  uint64_t completed = 0, failed = 0;
  std::string last_error;
  // Of a trainer's update: the one under way, or how far the last one came. Received: by the slowest replica.
  std::string group;  // empty: there was none
  uint64_t buckets = 0, buckets_received = 0;
  uint64_t bytes = 0, bytes_received = 0;
  uint64_t paused_requests = 0;  // that waited in a pause at the last switch
  WeightsSnapshot snapshot;
};

const char* phase_name(WeightsState::Phase phase);  // "staging"

// What replicas report of a trainer's update that they receive, in their heartbeats.
inline constexpr const char* kReceivingVersionMetric = "weights_receiving_version";
inline constexpr const char* kReceivedBucketsMetric = "weights_received_buckets";
inline constexpr const char* kReceivedBytesMetric = "weights_received_bytes";

class WeightControl {
 public:
  using Done = std::function<void(const Status&)>;

  virtual ~WeightControl() = default;
  // Every replica loads the folder beside its serving weights; when all have, all switch. A failure before that leaves
  // the old weights in service. An error: the update has not begun, and `done` is not called; kConflict while another
  // one is under way.
  virtual Status update_from_disk(DiskUpdate update, Done done) = 0;

  // An update by a trainer: join its process group, prepare() before it broadcasts, complete() after. One stage with
  // weights; replicas are ranks from rank_offset on.
  virtual void join_group(const TrainerGroup& group, Done done) = 0;
  // Ends an update that uses the group.
  virtual void leave_group(const std::string& name, Done done) = 0;
  // `done` is called when every replica waits for the first broadcast, or one refuses the tensors.
  virtual void prepare(const WeightPlan& plan, Done done) = 0;
  // Waits until all is received, then all replicas switch, if it is the last round. Reports a failure since prepare()
  // once.
  using Updated = std::function<void(const Result<LiveUpdated>&)>;
  virtual void complete(LiveCompletion completion, Updated done) = 0;
  // prepare() and complete() in one: the trainer broadcasts meanwhile.
  virtual void receive_and_complete(const WeightPlan& plan, LiveCompletion completion, Updated done) = 0;
  // The old weights serve on. kConflict: nothing is under way that could be aborted, or another group than this sends
  // the weights.
  virtual void abort_update(const std::optional<std::string>& group, Done done) = 0;

  // What WeightInspector answers to `request`, of each replica that is well; the first failure where one fails.
  using Inspected = std::function<void(const Result<std::vector<std::string>>&)>;
  virtual void inspect(std::string request, Inspected done) = 0;

  virtual void pause(wire::InFlightPolicy policy, Done done) = 0;
  // Pauses when the requests in flight have ended by themselves; those that come meanwhile begin after the resume.
  // kDeadline: they have not within kPauseWaitMs, and nothing is paused. kConflict: they stand still in another pause.
  // kCancelled: another pause() or resume() came first.
  virtual void pause_when_idle(Done done) = 0;
  virtual void resume(Done done) = 0;
  // Renames the serving version.
  virtual Status set_label(std::string label) = 0;
  virtual std::string label(uint64_t version) const = 0;
  virtual WeightsState state() const = 0;
};

}  // namespace millrace
