// TensorPacker: makes tensors of an update part of its new model on a thread of its own, so that the next one is
// received meanwhile. The thread has the priority of the one that made it.
//
// Memory: tensors that were received, are being received or are packed have kUnpackedBytes together, or are a single
// larger one: await_capacity() comes before each.
//
// Owner: the thread that receives. Thread safety: one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "models/live_weights.h"

namespace millrace {

inline constexpr std::size_t kUnpackedBytes = std::size_t{64} << 20;

class TensorPacker {
 public:
  // `weights` is the packer's until finish() has returned.
  explicit TensorPacker(LiveWeights& weights) : weights_(weights), thread_([this] { run(); }) {}
  ~TensorPacker() { (void)finish(); }

  // Waits until a tensor of `bytes` may be received, and counts it. The first error, of any tensor so far.
  Status await_capacity(std::size_t bytes);
  // One for which there was capacity. After an error it is dropped.
  void add(const TensorSpec& tensor, Buffer bytes);
  // Waits for what was added; the first error. Nothing may be added after it.
  Status finish();

 private:
  struct Received {
    TensorSpec tensor;
    Buffer bytes;
  };
  void run();
  Status pack(Received received);

  LiveWeights& weights_;
  std::mutex mutex_;  // guards what follows but the thread
  std::condition_variable changed_;
  std::deque<Received> received_;
  std::size_t unpacked_bytes_ = 0;
  bool finishing_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace millrace
