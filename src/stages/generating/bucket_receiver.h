// BucketReceiver: receives the buckets of an update over a process group and makes a model of them. The bytes of a
// tensor are put together from slices; TensorPacker quantizes and packs it while the next one comes. No bucket is held
// whole.
//
// An error of a tensor ends the update, and the buckets that follow are still received, so that the trainer's
// broadcasts return: PyTorch's sender waits for its own limit of 30 minutes otherwise.
//
// Owner: the thread that receives. Thread safety: one thread, but for what Progress has.
#pragma once

#include <atomic>
#include <memory>

#include "collective/process_group.h"
#include "models/live_weights.h"
#include "stages/weight_plan.h"

namespace millrace {

inline constexpr std::chrono::seconds kReceiveWeightsTime{600};  // a whole update
inline constexpr std::chrono::seconds kReceiveProgressTime{60};  // without a byte

// Of an update under way; any thread.
struct ReceiveProgress {
  std::atomic<bool> started{false};  // the first broadcast is awaited
  std::atomic<uint64_t> bytes{0};
  std::atomic<int> buckets{0};
};

// `weights` has checked the tensors of `plan`.
Result<std::shared_ptr<const Model>> receive_weights(collective::ProcessGroup& group, const WeightPlan& plan,
                                                     LiveWeights& weights, uint64_t version, ReceiveProgress& progress);

}  // namespace millrace
