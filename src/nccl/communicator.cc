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
  RETURN_IF_ERROR(api_.nccl("ncclCommInitRankConfig", api_.ncclCommInitRankConfig(&comm_, ranks, id, rank, &config)));
  step_ = Step::kJoining;
  return ok_status();
}

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
  return begun("ncclBroadcast", api_.ncclBroadcast(bytes, bytes, count, kNcclUint8, root, comm_, stream_));
}

Status Communicator::send(const std::byte* from, std::size_t bytes) {
  return begun("ncclSend", api_.ncclSend(from, bytes, kNcclUint8, 1 - rank_, comm_, stream_));
}

Status Communicator::receive(std::byte* to, std::size_t bytes) {
  return begun("ncclRecv", api_.ncclRecv(to, bytes, kNcclUint8, 1 - rank_, comm_, stream_));
}

Status Communicator::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  return api_.cuda("cudaMemcpyAsync", api_.cudaMemcpyAsync(to, from, bytes, kCudaMemcpyDefault, stream_));
}

Result<bool> Communicator::poll() {
  if (step_ == Step::kIdle) return true;
  int state = kSuccess;
  RETURN_IF_ERROR(api_.nccl("ncclCommGetAsyncError", api_.ncclCommGetAsyncError(comm_, &state)));
  RETURN_IF_ERROR(api_.nccl("the communicator", state));
  if (step_ != Step::kRunning) {
    if (state == kNcclInProgress) return false;
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
  for (const auto& [api, block] : blocks) (void)api->cudaFree(block);
}

}  // namespace millrace::nccl
