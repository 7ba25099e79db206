#include "relay/testing/device_relay.h"

#include <thread>
#include <utility>

#include "nccl/communicator.h"

namespace millrace::relay_testing {
namespace {

using nccl::Api;
using nccl::EventPtr;
using nccl::StreamPtr;

// One copy at a time, on a stream of its own; any thread.
class Copier {
 public:
  explicit Copier(const Api& api) : api_(api) {}
  ~Copier() {
    if (event_ != nullptr) (void)api_.cudaEventDestroy(event_);
    if (stream_ != nullptr) (void)api_.cudaStreamDestroy(stream_);
  }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  Status copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return ok_status();
    RETURN_IF_ERROR(open());
    RETURN_IF_ERROR(
        api_.cuda("cudaMemcpyAsync", api_.cudaMemcpyAsync(to, from, bytes, nccl::kCudaMemcpyDefault, stream_)));
    RETURN_IF_ERROR(api_.cuda("cudaEventRecord", api_.cudaEventRecord(event_, stream_)));
    int code = nccl::kCudaNotReady;
    while ((code = api_.cudaEventQuery(event_)) == nccl::kCudaNotReady) std::this_thread::yield();
    return api_.cuda("cudaEventQuery", code);
  }

 private:
  Status open() {
    if (event_ != nullptr) return ok_status();
    RETURN_IF_ERROR(
        api_.cuda("cudaStreamCreateWithFlags", api_.cudaStreamCreateWithFlags(&stream_, nccl::kCudaStreamNonBlocking)));
    return api_.cuda("cudaEventCreateWithFlags", api_.cudaEventCreateWithFlags(&event_, nccl::kCudaEventDisableTiming));
  }

  const Api& api_;
  StreamPtr stream_ = nullptr;
  EventPtr event_ = nullptr;
};

Result<SharedBytes> to_device(const Api& api, const SharedBytes& part) {
  if (part.empty() || part.device() != Device::kHost) return part;
  ASSIGN_OR_RETURN(std::shared_ptr<void> block, nccl::make_device_memory(api, part.size_bytes()));
  RETURN_IF_ERROR(Copier(api).copy(block.get(), part.data(), part.size_bytes()));
  const auto* data = static_cast<const std::byte*>(block.get());
  return SharedBytes{std::move(block), data, part.size_bytes(), Device::kCuda};
}

// The host's copy keeps the part: what the relay has lent is released with it.
Result<SharedBytes> to_host(const Api& api, const SharedBytes& part) {
  if (part.device() == Device::kHost) return part;
  struct Held {
    Buffer bytes;
    SharedBytes part;
  };
  auto held = std::make_shared<Held>(Held{Buffer(part.size_bytes()), part});
  RETURN_IF_ERROR(Copier(api).copy(held->bytes.data(), part.data(), part.size_bytes()));
  const std::byte* data = held->bytes.data();
  return SharedBytes{std::move(held), data, part.size_bytes()};
}

class DeviceRelay final : public Relay {
 public:
  DeviceRelay(std::unique_ptr<Relay> relay, const Api& api) : relay_(std::move(relay)), api_(api) {}

  RelayCapabilities capabilities() const override { return relay_->capabilities(); }
  std::string address() const override { return relay_->address(); }
  Result<PutTicket> put(PutRequest request) override {
    for (SharedBytes& part : request.parts) {
      ASSIGN_OR_RETURN(part, to_device(api_, part));
    }
    return relay_->put(std::move(request));
  }
  Result<RelayOp> get(GetRequest request) override {
    request.done = [this, done = std::move(request.done)](Result<std::vector<SharedBytes>> parts) {
      if (!parts.ok()) return done(std::move(parts));
      for (SharedBytes& part : *parts) {
        Result<SharedBytes> copied = to_host(api_, part);
        if (!copied.ok()) return done(copied.status());
        part = *std::move(copied);
      }
      done(std::move(parts));
    };
    return relay_->get(std::move(request));
  }
  void cancel(RelayOp op) override { relay_->cancel(op); }
  void cleanup(ReqId request) override { relay_->cleanup(request); }
  RelayBooks books() const override { return relay_->books(); }
  void close() override { relay_->close(); }

 private:
  const std::unique_ptr<Relay> relay_;
  const Api& api_;
};

}  // namespace

std::unique_ptr<Relay> behind_device_memory(std::unique_ptr<Relay> relay, const nccl::Api& api) {
  return std::make_unique<DeviceRelay>(std::move(relay), api);
}

}  // namespace millrace::relay_testing
