// Communicator: the device's side of one link or group: an NCCL communicator, a stream, an event and a staging
// buffer of kStagingBytes in device memory.
//
// Nothing here waits: one operation is begun, and poll() reports when it is over. A peer that dies is not noticed here
// (a kernel then waits for ever): the owner watches the connection, and destroys the communicator, which aborts.
//
// Owner: a Pair of NcclChannel, or a NcclGroup. Thread safety: one thread at a time, with the device set
// (cudaSetDevice); open() sets it.
#pragma once

#include <memory>

#include "base/status.h"
#include "nccl/nccl_api.h"

namespace millrace::nccl {

inline constexpr std::size_t kStagingBytes = std::size_t{8} << 20;  // also the largest frame

class Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> open(const Api& api, int device);
  ~Communicator();  // aborts what runs
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::byte* staging() const { return static_cast<std::byte*>(staging_); }

  // Joins the communicator; poll() returns true when all have.
  Status join(const UniqueId& id, int rank, int ranks = 2);
  // In place, from the rank `root` to all others; device memory, at least 1 byte.
  Status broadcast(std::byte* bytes, std::size_t count, int root);
  // To and from the other rank of two; likewise.
  Status send(const std::byte* from, std::size_t bytes);
  Status receive(std::byte* to, std::size_t bytes);
  // Between any two memories of this process; then finish_copies() and poll().
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes);
  Status finish_copies() { return mark(); }
  // True: what was begun is over. An error: the communicator is broken.
  Result<bool> poll();

 private:
  Communicator(const Api& api, int rank) : api_(api), rank_(rank) {}
  Status begun(const char* what, int code);
  Status mark();

  enum class Step { kIdle, kJoining, kEnqueuing, kRunning };

  const Api& api_;
  int rank_;
  Step step_ = Step::kIdle;
  CommPtr comm_ = nullptr;
  StreamPtr stream_ = nullptr;
  EventPtr event_ = nullptr;
  void* staging_ = nullptr;
};

// A block of device memory. It may be dropped on any thread at any time: it is freed later, by free_device_memory(), on
// a thread of a relay's, because cudaFree waits for the device.
Result<std::shared_ptr<void>> make_device_memory(const Api& api, std::size_t bytes);
void free_device_memory();

}  // namespace millrace::nccl
