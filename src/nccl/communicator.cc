#include "nccl/communicator.h"

#include <mutex>
#include <utility>
#include <vector>

namespace millrace::nccl {
namespace {

struct Dropped {
  std::mutex mutex;
  std::vector<std::pair<const Api*, void*>> blocks;
};
Dropped& dropped() {
  static auto* const instance = new Dropped;  // holders may release parts while the program ends
  return *instance;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::open(const Api& api, int device) {
  // First: streams, events and memory belong to the device that is set on this thread.
  RETURN_IF_ERROR(api.cuda("cudaSetDevice", api.cudaSetDevice(device)));
  std::unique_ptr<Communicator> c(new Communicator(api, 0));
  RETURN_IF_ERROR(
      api.cuda("cudaStreamCreateWithFlags", api.cudaStreamCreateWithFlags(&c->stream_, kCudaStreamNonBlocking)));
  RETURN_IF_ERROR(
      api.cuda("cudaEventCreateWithFlags", api.cudaEventCreateWithFlags(&c->event_, kCudaEventDisableTiming)));
  RETURN_IF_ERROR(api.cuda("cudaMalloc", api.cudaMalloc(&c->staging_, kStagingBytes)));
  return c;
}

Communicator::~Communicator() {
  // Abort also where all is well: it is the one way down that waits for no peer.
  if (comm_ != nullptr) api_.ncclCommAbort(comm_);
  if (event_ != nullptr) api_.cudaEventDestroy(event_);
  if (stream_ != nullptr) api_.cudaStreamDestroy(stream_);
  if (staging_ != nullptr) api_.cudaFree(staging_);
}

Status Communicator::join(const UniqueId& id, int rank, int ranks) {
  rank_ = rank;
  Config config;
  // Config::blocking is 0: it returns at once with ncclInProgress, and poll() reports when all ranks have joined. A
  // rank that never comes costs a deadline of the owner's, and not this thread.
  RETURN_IF_ERROR(api_.nccl("ncclCommInitRankConfig", api_.ncclCommInitRankConfig(&comm_, ranks, id, rank, &config)));
  step_ = Step::kJoining;
  return ok_status();
}

// A communicator without blocking may return before the operation is on the stream (ncclInProgress).
Status Communicator::begun(const char* what, int code) {
  RETURN_IF_ERROR(api_.nccl(what, code));
  if (code == kSuccess) return mark();
  step_ = Step::kEnqueuing;  // on the stream only later: an event recorded now would come too early
  return ok_status();
}

Status Communicator::mark() {
  RETURN_IF_ERROR(api_.cuda("cudaEventRecord", api_.cudaEventRecord(event_, stream_)));
  step_ = Step::kRunning;
  return ok_status();
}

Status Communicator::broadcast(std::byte* bytes, std::size_t count, int root) {
  CHECK(comm_ != nullptr && step_ == Step::kIdle && count > 0);
  return begun("ncclBroadcast", api_.ncclBroadcast(bytes, bytes, count, kNcclUint8, root, comm_, stream_));
}

Status Communicator::send(const std::byte* from, std::size_t bytes) {
  CHECK(comm_ != nullptr && step_ == Step::kIdle && bytes > 0);
  return begun("ncclSend", api_.ncclSend(from, bytes, kNcclUint8, 1 - rank_, comm_, stream_));
}

Status Communicator::receive(std::byte* to, std::size_t bytes) {
  CHECK(comm_ != nullptr && step_ == Step::kIdle && bytes > 0);
  return begun("ncclRecv", api_.ncclRecv(to, bytes, kNcclUint8, 1 - rank_, comm_, stream_));
}

Status Communicator::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  return api_.cuda("cudaMemcpyAsync", api_.cudaMemcpyAsync(to, from, bytes, kCudaMemcpyDefault, stream_));
}

Result<bool> Communicator::poll() {
  if (step_ == Step::kIdle) return true;
  int state = kSuccess;
  // Asked at each poll, as an error of the network or of a peer shows here and not in the event.
  RETURN_IF_ERROR(api_.nccl("ncclCommGetAsyncError", api_.ncclCommGetAsyncError(comm_, &state)));
  RETURN_IF_ERROR(api_.nccl("the communicator", state));
  if (step_ != Step::kRunning) {
    if (state == kNcclInProgress) return false;
    // A join is over with its state; an operation is on the stream only now, and the event behind it shows when it
    // ends.
    if (std::exchange(step_, Step::kIdle) == Step::kJoining) return true;
    RETURN_IF_ERROR(mark());
  }
  const int code = api_.cudaEventQuery(event_);
  if (code == kCudaNotReady) return false;
  RETURN_IF_ERROR(api_.cuda("cudaEventQuery", code));
  step_ = Step::kIdle;
  return true;
}

Result<std::shared_ptr<void>> make_device_memory(const Api& api, std::size_t bytes) {
  void* block = nullptr;
  if (const Status made = api.cuda("cudaMalloc", api.cudaMalloc(&block, bytes)); !made.ok()) {
    return error(StatusCode::kResourceExhausted, "{}; wanted {} bytes", made.message(), bytes);
  }
  // The api is never unloaded, see load_nccl(), so the reference holds for a deleter that runs at exit.
  return std::shared_ptr<void>(block, [&api](void* old) {
    std::lock_guard lock(dropped().mutex);
    dropped().blocks.emplace_back(&api, old);
  });
}

void free_device_memory() {
  std::vector<std::pair<const Api*, void*>> blocks;
  {
    std::lock_guard lock(dropped().mutex);
    blocks.swap(dropped().blocks);
  }
  // Without the mutex: cudaFree() waits for the device, and parts may be dropped meanwhile.
  for (const auto& [api, block] : blocks) (void)api->cudaFree(block);
}

}  // namespace millrace::nccl
