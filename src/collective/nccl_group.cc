#include "collective/nccl_group.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::collective {
namespace {

constexpr std::chrono::milliseconds kPollDevice{1};
constexpr std::chrono::milliseconds kPollTrainer{20};
constexpr std::chrono::hours kAwaitTrainer{24};  // for a communicator that is made with the first broadcast
constexpr std::size_t kIdMagicBytes = 8;         // before the address

}  // namespace

class NcclGroup::DeviceMemory {
 public:
  static Result<std::unique_ptr<DeviceMemory>> make(const nccl::Api& api, uint64_t bytes) {
    void* block = nullptr;
    const Status made = api.cuda("cudaMalloc", api.cudaMalloc(&block, bytes));
    if (made.ok()) return std::make_unique<DeviceMemory>(api, static_cast<std::byte*>(block), bytes);
    return error(StatusCode::kResourceExhausted, "{}; wanted {} bytes of device memory, as the broadcast has",
                 made.message(), bytes);
  }
  DeviceMemory(const nccl::Api& api, std::byte* data, uint64_t bytes) : api_(api), data_(data), bytes_(bytes) {}
  ~DeviceMemory() { (void)api_.cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return bytes_; }

 private:
  const nccl::Api& api_;
  std::byte* const data_;
  const uint64_t bytes_;
};

std::string nccl_id_key(StoreDialect dialect, const std::string& group) {
  return fmt::format("/{0}/{0}/{1}0", group, dialect == StoreDialect::kTorch2 ? "/cuda//" : "");
}

Result<SocketAddress> address_of_id(const nccl::UniqueId& id) {
  SocketAddress out;
  // NCCL's bootstrap handle (bootstrap.h): a magic number of 8 bytes, then the socket address of rank 0. ncclUniqueId
  // is opaque by its documentation, so anything else in it is refused.
  sa_family_t family = AF_UNSPEC;
  std::memcpy(&family, id.internal + kIdMagicBytes, sizeof(family));
  if (family == AF_INET) out.size = sizeof(sockaddr_in);
  if (family == AF_INET6) out.size = sizeof(sockaddr_in6);
  if (out.size == 0) {
    return invalid_argument("the id of the NCCL communicator has no address: its family is {}; wanted {} or {}", family,
                            AF_INET, AF_INET6);
  }
  std::memcpy(&out.storage, id.internal + kIdMagicBytes, out.size);
  return out;
}

NcclGroup::NcclGroup(const GroupOptions& options, GroupStore store, const nccl::Api& api, int device,
                     std::shared_ptr<const CancelSignal> cancel)
    : name_(options.name),
      rank_(options.rank),
      world_size_(options.world_size),
      api_(api),
      device_(device),
      cancel_(std::move(cancel)),
      store_(std::move(store)),
      slice_(kCopyBytes),
      // The last member: the thread uses all others, and is joined before they go.
      joining_([this] {
        join_status_ = join_communicator();
        // Publishes communicator_ and join_status_, which the joining thread does not use after it.
        joined_.store(true, std::memory_order_release);
      }) {}

NcclGroup::~NcclGroup() {
  // Ends the wait for the id and the one for the other ranks: the communicator is made without blocking, so no wait is
  // inside NCCL.
  stop_.cancel();
  joining_.join();
  (void)api_.cudaSetDevice(device_);  // the thread that ends it may be another one
  communicator_.reset();              // aborts what would still write into received_
}

// ---- the joining thread

Result<nccl::UniqueId> NcclGroup::await_id() {
  const std::string key = nccl_id_key(store_.client.dialect(), name_);
  const Result<std::string> value = store_.client.get(key, {Clock::now() + kAwaitTrainer, &stop_});
  if (!value.ok()) return value.status().with_prefix("the id of the NCCL communicator");
  nccl::UniqueId id;
  if (value->size() != sizeof(id.internal)) {
    return invalid_argument("the id of the NCCL communicator has {} bytes; wanted {}", value->size(),
                            sizeof(id.internal));
  }
  std::memcpy(id.internal, value->data(), sizeof(id.internal));
  // NCCL will connect to where the id leads.
  ASSIGN_OR_RETURN(const SocketAddress address, address_of_id(id));
  RETURN_IF_ERROR(store_.allowed.check(address));
  return id;
}

Status NcclGroup::join_communicator() {
  ASSIGN_OR_RETURN(const nccl::UniqueId id, await_id());
  ASSIGN_OR_RETURN(communicator_, nccl::Communicator::open(api_, device_));
  RETURN_IF_ERROR(communicator_->join(id, rank_, world_size_));
  // Without the caller's deadline: the trainer joins with its first broadcast, which may be hours from now.
  // receive_broadcast() has its own limit for that.
  return await_device({Clock::now() + kAwaitTrainer, &stop_});
}

// ---- waits

Status NcclGroup::check_trainer() const {
  if (!store_.client.lost()) return ok_status();
  return error(StatusCode::kUnavailable, "rank 0 closed its store");
}

Status NcclGroup::await_device(const WaitLimit& limit) {
  while (true) {
    ASSIGN_OR_RETURN(const bool over, communicator_->poll());
    if (over) return ok_status();
    RETURN_IF_ERROR(check_trainer());
    RETURN_IF_ERROR(pause_for(kPollDevice, limit));
  }
}

Status NcclGroup::await_joined(const WaitLimit& limit) {
  while (!joined_.load(std::memory_order_acquire)) {
    const Status over = pause_for(kPollDevice, limit);
    if (!over.ok()) return over.with_prefix("rank 0 has made no NCCL communicator");
  }
  return join_status_;
}

Status NcclGroup::await_loss(Clock::time_point deadline) {
  RETURN_IF_ERROR(broken_);
  while (check_trainer().ok()) RETURN_IF_ERROR(pause_for(kPollTrainer, {deadline, cancel_.get()}));
  return broken_ = check_trainer();
}

// ---- broadcasts

Status NcclGroup::receive_broadcast(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice) {
  CHECK(root != rank_ && root >= 0 && root < world_size_);
  RETURN_IF_ERROR(broken_);
  Status refused;
  broken_ = receive(root, bytes, limits, on_slice, refused);
  return broken_.ok() ? refused : broken_.with_prefix(fmt::format("rank {}", root));
}

Status NcclGroup::receive(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice,
                          Status& refused) {
  const WaitLimit limit{limits.deadline, cancel_.get()};
  RETURN_IF_ERROR(await_joined(limit.at_most(limits.progress)));
  if (bytes == 0) return ok_status();  // NCCL sends nothing
  RETURN_IF_ERROR(api_.cuda("cudaSetDevice", api_.cudaSetDevice(device_)));
  // Kept for the next broadcast, as cudaFree() waits for the device.
  if (received_ == nullptr || received_->size_bytes() < bytes) {
    // First freed: the device may not hold both.
    received_.reset();
    ASSIGN_OR_RETURN(received_, DeviceMemory::make(api_, bytes));
  }
  RETURN_IF_ERROR(communicator_->broadcast(received_->data(), bytes, root));
  // The limit for progress cannot be kept by the byte, as NCCL does not show how far it is: so the size adds to it.
  const std::chrono::milliseconds moving(bytes / kSlowestBytesPerMs);
  RETURN_IF_ERROR(await_device(limit.at_most(limits.progress + moving)));
  return copy_out(bytes, limit, on_slice, refused);
}

Status NcclGroup::copy_out(uint64_t bytes, const WaitLimit& limit, SliceConsumer on_slice, Status& refused) {
  // All bytes are in device memory by now, and the trainer's call is over: a refusal may end the copy.
  for (uint64_t at = 0; at < bytes && refused.ok(); at += slice_.size()) {
    const std::size_t count = std::min<uint64_t>(slice_.size(), bytes - at);
    RETURN_IF_ERROR(communicator_->copy(slice_.data(), received_->data() + at, count));
    RETURN_IF_ERROR(communicator_->finish_copies());
    RETURN_IF_ERROR(await_device(limit));
    refused = on_slice(std::span(slice_).first(count));
  }
  return ok_status();
}

Result<std::unique_ptr<ProcessGroup>> join_nccl_group(const GroupOptions& options,
                                                      std::shared_ptr<const CancelSignal> cancel,
                                                      Clock::time_point deadline, const nccl::Libraries& libraries) {
  RETURN_IF_ERROR(check_group_options(options));
  const Result<const nccl::Api*> api = nccl::load_nccl(libraries);
  if (!api.ok()) return api.status().with_prefix("backend nccl");
  int devices = 0;
  RETURN_IF_ERROR((*api)->cuda("cudaGetDeviceCount", (*api)->cudaGetDeviceCount(&devices)));
  ASSIGN_OR_RETURN(GroupStore store, open_group_store(options, {deadline, cancel.get()}));
  return std::unique_ptr<ProcessGroup>(std::make_unique<NcclGroup>(
      options, std::move(store), **api, options.local_index % std::max(devices, 1), std::move(cancel)));
}

}  // namespace millrace::collective
