#include "api/packed_weights.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace millrace::api {

Result<Packing> read_packing(const Json& info, const Packing& absent) {
  Packing out = absent;
  RETURN_IF_ERROR(json_read(info, "packed", out.packed));
  RETURN_IF_ERROR(json_read(info, "packed_buffer_size_bytes", out.buffer_bytes));
  if (out.buffer_bytes >= 1 && out.buffer_bytes <= kMaxPackedBufferBytes) return out;
  return invalid_argument("packed_buffer_size_bytes is {}; wanted 1 to {}", out.buffer_bytes, kMaxPackedBufferBytes);
}

Status pack(const Packing& packing, WeightPlan& plan) {
  if (!packing.packed) return ok_status();
  std::vector<TensorSpec> tensors = plan.tensors();
  std::vector<std::vector<TensorSpec>> buffers;
  uint64_t bytes = 0;  // of the last one
  bool complete = true;
  for (TensorSpec& tensor : tensors) {
    if (std::exchange(complete, false)) buffers.emplace_back(), bytes = 0;
    bytes += tensor.size_bytes();
    buffers.back().push_back(std::move(tensor));
    complete = bytes > static_cast<uint64_t>(packing.buffer_bytes);
  }
  if (buffers.size() > kMaxWeightBuckets) {
    return error(StatusCode::kTooLarge, "packed_buffer_size_bytes is {}, which makes {} buffers; wanted at most {}",
                 packing.buffer_bytes, buffers.size(), kMaxWeightBuckets);
  }
  plan.buckets = std::move(buffers);
  plan.flattened = true;
  return ok_status();
}

}  // namespace millrace::api
