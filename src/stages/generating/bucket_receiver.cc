#include "stages/generating/bucket_receiver.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "stages/generating/tensor_packer.h"

namespace millrace {
namespace {

constexpr int kTrainerRank = 0;

// Cuts the bytes of tensors that follow each other out of slices.
class TensorCutter {
 public:
  TensorCutter(TensorPacker& packer, ReceiveProgress& progress) : packer_(packer), progress_(progress) {}

  // The bytes that come next are those of `tensors`. Nothing before was left unfinished.
  void expect(std::span<const TensorSpec> tensors) {
    tensors_ = tensors;
    begin_tensor();
  }
  Status on_slice(std::span<const std::byte> slice) {
    progress_.bytes.fetch_add(slice.size(), std::memory_order_relaxed);
    while (!slice.empty() && status_.ok()) {
      CHECK(!tensors_.empty());  // the broadcast has the length of its tensors
      const std::size_t count = std::min(slice.size(), bytes_.size_bytes() - filled_);
      std::memcpy(bytes_.data() + filled_, slice.data(), count);
      filled_ += count;
      slice = slice.subspan(count);
      if (filled_ == bytes_.size_bytes()) end_tensor();
    }
    return status_;
  }
  // The first error of a tensor; those that follow it are dropped.
  const Status& status() const { return status_; }

 private:
  void begin_tensor() {
    filled_ = 0;
    bytes_ = Buffer();
    while (!tensors_.empty() && status_.ok()) {
      const std::size_t size = tensors_.front().size_bytes();
      Result<Buffer> buffer = packer_.take_buffer(size);
      status_ = buffer.status();
      if (!status_.ok()) return;
      bytes_ = std::move(buffer).value();
      if (size > 0) return;
      add();  // one without elements
    }
  }
  void end_tensor() {
    add();
    begin_tensor();
  }
  void add() {
    packer_.add(tensors_.front(), std::move(bytes_));
    tensors_ = tensors_.subspan(1);
  }

  TensorPacker& packer_;
  ReceiveProgress& progress_;
  std::span<const TensorSpec> tensors_;  // the first one is being filled
  Buffer bytes_;
  std::size_t filled_ = 0;
  Status status_;
};

uint64_t total_bytes(std::span<const TensorSpec> tensors) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += tensor.size_bytes();
  return bytes;
}

// An error: the group is of no more use.
Status receive(collective::ProcessGroup& group, std::span<const TensorSpec> tensors, TensorCutter& cutter,
               collective::Clock::time_point deadline) {
  if (cutter.status().ok()) cutter.expect(tensors);
  const Status status =
      group.receive_broadcast(kTrainerRank, total_bytes(tensors), {deadline, kReceiveProgressTime},
                              [&](std::span<const std::byte> slice) { return cutter.on_slice(slice); });
  return cutter.status().ok() ? status : ok_status();
}

}  // namespace

Result<std::shared_ptr<const Model>> receive_weights(collective::ProcessGroup& group, const WeightPlan& plan,
                                                     LiveWeights& weights, uint64_t version,
                                                     ReceiveProgress& progress) {
  const auto deadline = collective::Clock::now() + kReceiveWeightsTime;
  TensorPacker packer(weights);
  TensorCutter cutter(packer, progress);
  progress.started.store(true, std::memory_order_release);
  for (const std::vector<TensorSpec>& bucket : plan.buckets) {
    const std::span<const TensorSpec> tensors(bucket);
    if (plan.flattened) {
      RETURN_IF_ERROR(receive(group, tensors, cutter, deadline));
    } else {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        RETURN_IF_ERROR(receive(group, tensors.subspan(i, 1), cutter, deadline));
      }
    }
    progress.buckets.fetch_add(1, std::memory_order_relaxed);
  }
  RETURN_IF_ERROR(cutter.status());
  RETURN_IF_ERROR(packer.finish());
  return weights.make(version);
}

}  // namespace millrace
