#include "relay/nccl/nccl_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "relay/nccl/link.h"
#include "relay/tcp/limits.h"
#include "relay/ticker.h"

namespace millrace {
namespace {

using nccl::Core;
using nccl::Link;
using nccl::ReaderLink;
using nccl::WriterLink;

constexpr char kName[] = "nccl";
constexpr char kDefaultListen[] = "127.0.0.1:0";
constexpr std::size_t kMaxLinks = 64;  // of either direction
constexpr int kLinkStopMs = 1'000;     // for all threads to end, at close()

Status check(const RelayOptions& options, const tcp::SocketAddress& listen) {
  RETURN_IF_ERROR(check_options(options));
  return tcp::check_reach(listen, options.secret);
}

// A set of links with a limit. Thread safety: the relay's mutex.
template <typename T>
class Links {
 public:
  // Joins the threads that have ended.
  void sweep() {
    std::erase_if(all_, [](const std::shared_ptr<T>& link) {
      if (!link->finished()) return false;
      link->finish();
      return true;
    });
  }
  bool full() const { return all_.size() >= kMaxLinks; }
  void add(std::shared_ptr<T> link) {
    all_.push_back(link);
    link->start();
  }
  const std::vector<std::shared_ptr<T>>& all() const { return all_; }

 private:
  std::vector<std::shared_ptr<T>> all_;
};

class NcclRelay final : public Relay {
 public:
  NcclRelay(const RelayOptions& options, const nccl::Api& api, int device)
      : core_(std::make_shared<Core>(options, api, device)) {}
  ~NcclRelay() override { NcclRelay::close(); }

  Status open(const tcp::SocketAddress& listen) {
    stop_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (stop_fd_ < 0) return Status(StatusCode::kUnavailable, "eventfd failed");
    ASSIGN_OR_RETURN(listener_, tcp::listen_at(listen, core_->bound));
    core_->address = tcp::format_instance(core_->bound, core_->key);
    acceptor_ = std::thread([this] { accept_all(); });
    ticker_ = std::make_unique<Ticker>([this] { return core_->table.expire(relay_now_ms()); });
    return ok_status();
  }

  RelayCapabilities capabilities() const override {
    RelayCapabilities c;
    c.name = kName;
    c.same_process = c.same_host = true;
    c.across_hosts = !core_->bound.loopback();
    c.cuda_memory = true;
    c.max_put_bytes = core_->options.pool_bytes;
    return c;
  }
  std::string address() const override { return core_->address; }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, core_->options.pool_bytes));
    RETURN_IF_ERROR(check_devices(request));
    std::vector<bool> on_device;
    for (const SharedBytes& part : request.parts) on_device.push_back(part.device() == Device::kCuda);
    const std::vector<std::size_t> sizes = part_sizes(request.parts);
    Descriptor descriptor;
    descriptor.backend = kName;
    descriptor.instance = core_->instance;
    describe_sizes(sizes, descriptor);
    descriptor.tail = core_->bound.to_string();
    nccl::Offer offer;
    offer.layout = std::make_shared<nccl::Layout>(sizes, std::move(on_device));
    offer.destination = request.destination;
    offer.unclaimed = offer.unreleased = request.readers;
    ASSIGN_OR_RETURN(descriptor.op, core_->table.open_put(std::move(request), descriptor.bytes, relay_now_ms()));
    descriptor.generation = core_->generation_of(descriptor.op);
    offer.name = {descriptor.op, descriptor.generation, descriptor.bytes, descriptor.sizes_hash};
    core_->offer(std::move(offer));
    core_->table.unpin(descriptor.op);
    ticker_->wake();
    return PutTicket{descriptor.op, encode_descriptor(descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    ASSIGN_OR_RETURN(const Descriptor descriptor, descriptor_of(request, kName));
    if (descriptor.bytes > core_->options.pool_bytes) {
      return error(StatusCode::kTooLarge, "the put has {} bytes; this relay takes at most {}", descriptor.bytes,
                   core_->options.pool_bytes);
    }
    ASSIGN_OR_RETURN(const tcp::SocketAddress writer, tcp::parse_host_port(descriptor.tail));
    if (writer.port() == 0) return invalid_argument("the descriptor names port 0");
    if (!writer.loopback() && core_->options.secret.empty()) {
      return invalid_argument("the put is beyond this host, and there is no secret; wanted one");
    }
    ReaderLink::Order order;
    order.put = {descriptor.op, descriptor.generation, descriptor.bytes, descriptor.sizes_hash};
    ASSIGN_OR_RETURN(order.get, core_->table.open_get(std::move(request), relay_now_ms()));
    if (Status sent = dispatch(order, writer, nccl::key_of(descriptor.instance)); !sent.ok()) {
      core_->table.forget(order.get);
      return sent;
    }
    core_->table.unpin(order.get);
    ticker_->wake();
    return order.get;
  }

  void cancel(RelayOp op) override { core_->table.cancel(op); }
  void cleanup(ReqId request) override { core_->table.cleanup(request); }
  RelayBooks books() const override { return core_->table.books(); }

  void close() override {
    const std::lock_guard closing(close_mutex_);
    if (std::exchange(closed_, true)) return;
    const uint64_t one = 1;
    (void)!::write(stop_fd_, &one, sizeof(one));
    if (acceptor_.joinable()) acceptor_.join();
    std::vector<std::shared_ptr<Link>> links;
    {
      std::lock_guard lock(mutex_);
      accepting_ = false;
      for (const auto& link : writers_.all()) links.push_back(link);
      for (const auto& [key, link] : readers_by_key_) link->stop();
      for (const auto& link : readers_.all()) links.push_back(link);
    }
    for (const auto& link : links) link->stop();
    const int64_t deadline_ms = relay_now_ms() + kLinkStopMs;
    const auto running = [](const auto& link) { return !link->finished(); };
    while (std::any_of(links.begin(), links.end(), running) && relay_now_ms() < deadline_ms) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const auto& link : links) link->finish();
    core_->table.close();
    if (ticker_) ticker_->stop();
    if (listener_ >= 0) ::close(listener_);
    if (stop_fd_ >= 0) ::close(stop_fd_);
  }

 private:
  // Parts that are said to be in device memory must be on this relay's device.
  Status check_devices(const PutRequest& request) const {
    for (const SharedBytes& part : request.parts) {
      if (part.device() != Device::kCuda || part.empty()) continue;
      nccl::PointerAttributes attributes{};
      RETURN_IF_ERROR(
          core_->api.cuda("cudaPointerGetAttributes", core_->api.cudaPointerGetAttributes(&attributes, part.data())));
      const bool there = attributes.type == nccl::kMemoryDevice || attributes.type == nccl::kMemoryManaged;
      if (!there || attributes.device != core_->device) {
        return invalid_argument("a part has memory of type {} on device {}; wanted device memory on {}",
                                attributes.type, attributes.device, core_->device);
      }
    }
    return ok_status();
  }

  // To the link of that writer, which is made where there is none.
  Status dispatch(const ReaderLink::Order& order, const tcp::SocketAddress& writer, uint64_t key) {
    std::lock_guard lock(mutex_);
    if (!accepting_) return Status(StatusCode::kUnavailable, "the relay is closed");
    const auto at = readers_by_key_.find(key);
    if (at != readers_by_key_.end() && at->second->push(order)) return ok_status();
    readers_.sweep();
    std::erase_if(readers_by_key_, [](const auto& entry) { return entry.second->dead(); });
    if (readers_.full()) {
      return error(StatusCode::kResourceExhausted, "the relay reads from {} others already", kMaxLinks);
    }
    ASSIGN_OR_RETURN(const int fd, tcp::start_connect(writer));
    auto link = std::make_shared<ReaderLink>(core_, fd, key);
    (void)link->push(order);
    readers_by_key_[key] = link;
    readers_.add(std::move(link));
    return ok_status();
  }

  void accept_all() {
    while (true) {
      pollfd wanted[] = {{listener_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
      (void)::poll(wanted, 2, -1);
      if (wanted[1].revents != 0) return;
      if (wanted[0].revents == 0) continue;
      const int fd = tcp::accept_one(listener_);
      if (fd < 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // out of files, perhaps: not a busy loop
        continue;
      }
      std::lock_guard lock(mutex_);
      writers_.sweep();
      if (writers_.full()) {
        ::close(fd);
      } else {
        writers_.add(std::make_shared<WriterLink>(core_, fd));
      }
    }
  }

  const std::shared_ptr<Core> core_;
  int listener_ = -1;
  int stop_fd_ = -1;
  std::mutex mutex_;
  bool accepting_ = true;
  Links<WriterLink> writers_;
  Links<ReaderLink> readers_;
  std::unordered_map<uint64_t, std::shared_ptr<ReaderLink>> readers_by_key_;  // not dead, as far as is known
  std::thread acceptor_;
  std::unique_ptr<Ticker> ticker_;
  std::mutex close_mutex_;
  bool closed_ = false;
};

}  // namespace

Result<std::unique_ptr<Relay>> make_nccl_relay_of(const RelayOptions& options, const nccl::Libraries& libraries) {
  ASSIGN_OR_RETURN(const nccl::Api* api, nccl::load_nccl(libraries));
  const std::string listen = options.listen.empty() ? kDefaultListen : options.listen;
  ASSIGN_OR_RETURN(const tcp::SocketAddress address, tcp::parse_host_port(listen));
  RETURN_IF_ERROR(check(options, address));
  int device = 0;
  RETURN_IF_ERROR(api->cuda("cudaGetDevice", api->cudaGetDevice(&device)));
  auto relay = std::make_unique<NcclRelay>(options, *api, device);
  RETURN_IF_ERROR(relay->open(address));
  return std::unique_ptr<Relay>(std::move(relay));
}

Result<std::unique_ptr<Relay>> make_nccl_relay(const RelayOptions& options) { return make_nccl_relay_of(options, {}); }

}  // namespace millrace
