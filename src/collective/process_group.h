// ProcessGroup: this process as one rank of a group that a trainer made with PyTorch, as far as weights need it: it
// receives broadcasts. join_gloo_group() joins one whose backend is gloo, join_nccl_group() (nccl_group.h) one whose
// backend is NCCL.
//
// A broadcast is given to the caller in slices as they arrive, and is never held whole. One that the caller refuses is
// still read to its end, so that the trainer's call returns: gloo's sender does not notice a closed connection, and
// would wait for its own limit, 30 minutes. After an error of the connection, a deadline or a cancel() the group is of
// no more use.
//
// Owner: the thread that joins. Thread safety: one thread, but for the CancelSignal, which ends its waits from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/function_ref.h"
#include "collective/cancel_signal.h"

namespace millrace::collective {

struct GroupOptions {
  std::string address;  // of the TCPStore, which the trainer's rank 0 holds
  uint16_t port = 0;
  int rank = 1;
  int world_size = 2;
  std::string name;
  std::string allowed_hosts;  // to which it may connect (AllowedHosts); empty: loopback
  int local_index = 0;        // among the ranks of this host: each has a GPU
};

struct ReceiveLimits {
  Clock::time_point deadline;                  // of the whole broadcast
  std::chrono::milliseconds progress{60'000};  // without a byte
};

using SliceConsumer = FunctionRef<Status(std::span<const std::byte>)>;

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  // Takes part in the next collective of the group, a broadcast of `bytes` bytes by `root`: receives them and sends
  // them on to the ranks that get them from this one. The first error of `on_slice` is returned, after the rest has
  // been read.
  virtual Status receive_broadcast(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice) = 0;
  // Waits until a connection is lost (kUnavailable) or the limit ends the wait (kDeadline, kCancelled).
  virtual Status await_loss(Clock::time_point deadline) = 0;
};

// kInvalidArgument where the options cannot be. Waits for the trainer and all other ranks until the deadline.
Result<std::unique_ptr<ProcessGroup>> join_gloo_group(const GroupOptions& options,
                                                      std::shared_ptr<const CancelSignal> cancel,
                                                      Clock::time_point deadline);

}  // namespace millrace::collective
