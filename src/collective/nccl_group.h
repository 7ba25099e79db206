// NcclGroup: a ProcessGroup whose trainer broadcasts with PyTorch's NCCL backend, from GPU to GPU. This rank receives
// into device memory and copies slices of it to the caller.
//
//   join --> the store is connected, the libraries are there
//              '--> a thread waits for the id of the communicator in the store, then joins --> joined
//   receive_broadcast() waits for that, too: a trainer may make its communicator at once, or for its first broadcast
//
// A lost trainer is found by its store, whose connection ends; NCCL alone would wait for ever. Device memory: the
// largest broadcast, and Communicator's staging.
//
// Owner: the thread that joined. Thread safety: process_group.h; the thread that joins the communicator is its own.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "collective/group_store.h"
#include "collective/process_group.h"
#include "nccl/communicator.h"

namespace millrace::collective {

inline constexpr std::size_t kCopyBytes = std::size_t{4} << 20;  // of one copy from the device
// The slowest broadcast that counts as one: NCCL does not show how far it is.
inline constexpr uint64_t kSlowestBytesPerMs = 16 << 10;

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(const GroupOptions& options, GroupStore store, const nccl::Api& api, int device,
            std::shared_ptr<const CancelSignal> cancel);
  ~NcclGroup() override;

  Status receive_broadcast(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice) override;
  Status await_loss(Clock::time_point deadline) override;

 private:
  class DeviceMemory;
  Status join_communicator();
  Result<nccl::UniqueId> await_id();
  Status await_joined(const WaitLimit& limit);
  Status await_device(const WaitLimit& limit);
  Status check_trainer() const;
  Status receive(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice, Status& refused);
  Status copy_out(uint64_t bytes, const WaitLimit& limit, SliceConsumer on_slice, Status& refused);

  const std::string name_;
  const int rank_;
  const int world_size_;
  const nccl::Api& api_;
  const int device_;
  const std::shared_ptr<const CancelSignal> cancel_;
  GroupStore store_;
  std::unique_ptr<nccl::Communicator> communicator_;  // the joining thread's until joined_
  Status join_status_;                                // likewise
  std::unique_ptr<DeviceMemory> received_;
  std::vector<std::byte> slice_;
  Status broken_;  // what ended the group
  CancelSignal stop_;
  std::atomic<bool> joined_{false};
  std::thread joining_;
};

// Of the id that PyTorch has put into the store: where its rank 0 waits for the others. kInvalidArgument: it has no
// address where NCCL's have one.
Result<SocketAddress> address_of_id(const nccl::UniqueId& id);

// The key of the id of a group's first communicator.
std::string nccl_id_key(StoreDialect dialect, const std::string& group);

// As join_gloo_group(). The ranks of this host take its GPUs in turn. kUnavailable: a library or a GPU is missing,
// which the error names. Returns when the store is connected: the trainer may make its communicator later.
Result<std::unique_ptr<ProcessGroup>> join_nccl_group(const GroupOptions& options,
                                                      std::shared_ptr<const CancelSignal> cancel,
                                                      Clock::time_point deadline,
                                                      const nccl::Libraries& libraries = {});

}  // namespace millrace::collective
