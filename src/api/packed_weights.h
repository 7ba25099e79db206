// How vLLM's trainers send tensors with `packed: true`: in the order of their names into buffers, each of which is one
// broadcast of bytes. A buffer is complete as soon as it is larger than `packed_buffer_size_bytes`; the last one may be
// smaller. The rule is that of vLLM's packed tensor producer; both ends must have the same size.
//
// Trainers of this year send these members once, with init_info; earlier ones with each update_info, which counts.
// packed_num_buffers is how many the trainer fills at the same time, and changes no byte.
//
// Thread safety: values and free functions; PackingOfGroup: all functions from any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "stages/weight_plan.h"

namespace millrace::api {

inline constexpr int64_t kPackedBufferBytes = int64_t{1} << 30;  // vLLM's own
inline constexpr int64_t kMaxPackedBufferBytes = int64_t{1} << 40;

struct Packing {
  bool packed = false;
  int64_t buffer_bytes = kPackedBufferBytes;
};

// `absent`: where `info` does not have the member. kInvalidArgument naming the member.
Result<Packing> read_packing(const Json& info, const Packing& absent);
// The tensors of the plan's one bucket in the buffers that they come in. kTooLarge: more than kMaxWeightBuckets.
Status pack(const Packing& packing, WeightPlan& plan);

// What the init_info of the last group had.
class PackingOfGroup {
 public:
  void set(const std::string& group, const Packing& packing) {
    const std::lock_guard lock(mutex_);
    group_ = group, packing_ = packing;
  }
  // Another group: as where nothing was sent.
  Packing of(const std::string& group) const {
    const std::lock_guard lock(mutex_);
    return group == group_ ? packing_ : Packing{};
  }

 private:
  mutable std::mutex mutex_;
  std::string group_;
  Packing packing_;
};

}  // namespace millrace::api
