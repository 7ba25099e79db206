// TensorPacker: makes tensors of an update part of its new model on a thread of its own, so that the next one is
// received meanwhile. The thread has the priority of the one that made it.
//
// Memory: tensors that were received, are being received or are packed have kUnpackedBytes together, or are a single
// larger one. Those that were packed are filled again by tensors of the same size, as layers have them: the kernel
// would clear fresh memory for each, which takes longer than the packing.
//
// Owner: the thread that receives. Thread safety: one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "models/live_weights.h"

namespace millrace {

inline constexpr std::size_t kUnpackedBytes = std::size_t{64} << 20;

class TensorPacker {
 public:
  // `weights` is the packer's until finish() has returned.
  explicit TensorPacker(LiveWeights& weights) : weights_(weights), thread_([this] { run(); }) {}
  ~TensorPacker() { (void)finish(); }

  // Memory for a tensor of `size_bytes`; waits until there is. The first error, of any tensor so far.
  Result<Buffer> take_buffer(std::size_t size_bytes);
  // One in memory of take_buffer(). After an error it is dropped.
  void add(const TensorSpec& tensor, Buffer bytes);
  // Waits for what was added; the first error. Nothing may be added after it.
  Status finish();

 private:
  struct Received {
    TensorSpec tensor;
    Buffer bytes;
  };
  void run();
  Status pack(Received& received);
  // Under the lock.
  std::optional<Buffer> reuse(std::size_t size_bytes);

  LiveWeights& weights_;
  std::mutex mutex_;  // guards what follows but the thread
  std::condition_variable changed_;
  std::deque<Received> received_;
  std::size_t unpacked_bytes_ = 0;
  std::deque<Buffer> idle_;  // to be filled again; the longest idle first
  std::size_t idle_bytes_ = 0;
  bool finishing_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace millrace
