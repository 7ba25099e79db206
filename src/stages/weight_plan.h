// What a trainer announces before it sends weights: the process group that it makes, and the tensors of each bucket. It
// comes as the JSON of a request, is checked at the edge, and travels to the generating stages as JSON again.
//
// Unknown members are ignored: trainers send those of other servers.
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "models/live_weights.h"

namespace millrace {

inline constexpr std::size_t kMaxWeightBuckets = 4096;
inline constexpr std::size_t kMaxWeightTensors = 65536;  // of one update
inline constexpr std::size_t kMaxTensorNameBytes = 512;
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 40;
inline constexpr std::size_t kMaxTrainerHostBytes = 256;  // a DNS name has 253 at most
inline constexpr std::size_t kMaxGroupNameBytes = 256;
inline constexpr int kMaxTrainerRanks = 1024;  // of a process group, the trainer's own among them

struct TrainerGroup {
  std::string address;  // of the trainer's store
  uint16_t port = 0;
  int rank_offset = 1;  // of the first replica
  int world_size = 2;
  std::string name;
  std::string backend = "gloo";  // or "nccl"
};

// Bytes [begin, end) of a file on this host, with their XXH3: the tensors of a request's body.
struct WeightBody {
  std::string path;  // empty: a trainer broadcasts them
  uint64_t begin = 0, end = 0;
  uint64_t checksum = 0;
};

struct WeightPlan {
  std::string group;
  bool flattened = false;  // a bucket is one broadcast; else each tensor is
  // Of the weights that it changes: tensors that are not sent are theirs. 0: whichever serve.
  uint64_t base_version = 0;
  int64_t round = 0;  // of one update; from the second on, what is not sent is as the round before left it
  std::vector<std::vector<TensorSpec>> buckets;
  WeightBody body;  // not of a request's JSON: read_weight_body

  std::vector<TensorSpec> tensors() const;
  uint64_t size_bytes() const;
};

// kInvalidArgument or kUnsupported naming the member.
Result<TrainerGroup> read_trainer_group(const Json& body);
Result<std::string> read_group_name(const Json& body);
// `buckets`, or one bucket in `names`, `dtypes` and `shapes`.
Result<WeightPlan> read_weight_plan(const Json& body);

// Of a plan that to_json() made; a client names no file.
Result<WeightBody> read_weight_body(const Json& plan);

// What the readers above read to the same values.
std::string to_json(const TrainerGroup& group);
std::string to_json(const WeightPlan& plan, uint64_t base_version, int64_t round = 0);

}  // namespace millrace
