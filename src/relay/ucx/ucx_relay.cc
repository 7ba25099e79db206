#include "relay/ucx/ucx_relay.h"

#include <cstdlib>
#include <future>
#include <thread>

#include "base/log.h"
#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/ucx/link.h"
#include "relay/ucx/pool.h"
#include "relay/ucx/reader.h"
#include "relay/ucx/transports.h"
#include "relay/ucx/ucx_api.h"
#include "relay/ucx/writer.h"

namespace millrace {
namespace ucx {
namespace {

constexpr std::size_t kMaxGetBytes = std::size_t{1} << 40;
constexpr int kThreadPatienceMs = kGoodbyeMs + kTeardownMs + 500;  // for the thread; within kRelayCloseMs
static_assert(kThreadPatienceMs < kRelayCloseMs);

// The sum of the descriptor may have gone round.
Status check_total(const std::vector<std::size_t>& sizes) {
  std::size_t total = 0;
  for (const std::size_t size : sizes) {
    if (size > kMaxGetBytes - total) {
      return error(StatusCode::kTooLarge, "the get is told of more than {} bytes", kMaxGetBytes);
    }
    total += size;
  }
  return ok_status();
}

// Everything that the thread uses. The thread keeps it alive too, in case that it must be abandoned.
struct Core final : LinkEvents {
  Core(const RelayOptions& options, std::unique_ptr<Link> the_link, bool memory)
      : link(std::move(the_link)),
        table(options,
              [this](RelayOp op, bool is_put, const Status& status) {
                if (is_put) return writer.ended(op, status);
                reader.ended(op, status.code());
                return true;
              }),
        pool(memory ? std::make_unique<Pool>(link->api(), link->context(), options.pool_bytes,
                                             static_cast<std::size_t>(options.credits))
                    : nullptr),
        reader(table, *link),
        writer(table, *link, pool.get(), options.checksum) {}

  void on_open(Peer& peer) override { reader.on_open(peer); }
  void on_bad_frame() override { table.count_bad_frame(); }
  bool on_idle() override { return reader.copy_some(); }
  int64_t on_time(int64_t now_ms) override { return table.expire(now_ms); }
  void on_gone(Peer& peer, const Status& why) override {
    reader.on_gone(peer, why);
    writer.on_gone(peer);
  }
  void on_frame(Peer& peer, const Frame& frame, const Payload& payload) override {
    switch (frame.type) {
      case FrameType::kGet:
        return writer.on_get(peer, frame);
      case FrameType::kRelease:
        return writer.on_release(peer, frame);
      case FrameType::kData:
        return reader.on_data(peer, frame, payload);
      case FrameType::kSlot:
        return reader.on_slot(peer, frame, payload);
      case FrameType::kRefuse:
        return reader.on_refuse(peer, frame, payload);
      case FrameType::kReleased:
        return reader.on_released(peer, frame);
      default:
        table.count_bad_frame();
    }
  }

  std::unique_ptr<Link> link;  // the first member: the others use it to their end
  OpTable table;
  std::unique_ptr<Pool> pool;
  Reader reader;
  Writer writer;
};

class UcxRelay final : public Relay {
 public:
  UcxRelay(const RelayOptions& options, const Transports& transports, std::shared_ptr<Core> core)
      : options_(options), transports_(transports), core_(std::move(core)) {
    std::promise<bool> clean;
    ended_ = clean.get_future();
    thread_ = std::thread([core = core_, clean = std::move(clean)]() mutable {
      const bool ended = core->link->run(*core);
      clean.set_value(ended);
    });
  }
  ~UcxRelay() override { close(); }

  RelayCapabilities capabilities() const override {
    RelayCapabilities capabilities;
    capabilities.name = "ucx";
    capabilities.same_process = true;
    capabilities.same_host = true;
    capabilities.across_hosts = transports_.network;
    capabilities.max_put_bytes = options_.pool_bytes;
    return capabilities;
  }
  std::string address() const override { return relay_address(core_->link->self()); }
  RelayBooks books() const override { return core_->table.books(); }
  void cancel(RelayOp op) override { core_->table.cancel(op); }
  void cleanup(ReqId request) override { core_->table.cleanup(request); }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, options_.pool_bytes));
    for (const SharedBytes& part : request.parts) {
      if (part.device() != Device::kHost) {
        return Status(StatusCode::kUnsupported, "the ucx relay moves host memory only");
      }
    }
    const std::size_t bytes = total_bytes(request);
    const int64_t now_ms = relay_now_ms();
    ASSIGN_OR_RETURN(const RelayOp op, core_->table.open_put(std::move(request), bytes, now_ms));
    PutTicket ticket{op, core_->writer.put(op)};
    core_->link->wake_by(now_ms + options_.lease_ms);
    core_->table.unpin(op);
    return ticket;
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    ASSIGN_OR_RETURN(Descriptor descriptor, descriptor_of(request, "ucx"));
    RETURN_IF_ERROR(check_total(request.sizes));
    const int64_t now_ms = relay_now_ms();
    const int64_t due_ms = now_ms + request.timeout_ms;
    ASSIGN_OR_RETURN(const RelayOp op, core_->table.open_get(std::move(request), now_ms));
    core_->link->post(
        [core = core_.get(), op, descriptor = std::move(descriptor)] { core->reader.start(op, descriptor); });
    core_->link->wake_by(due_ms);
    core_->table.unpin(op);
    return op;
  }

  void close() override {
    std::lock_guard lock(close_mutex_);
    if (!thread_.joinable()) return;
    // The thread first takes down what UCX still does into callers' memory: ends that wait for that come then.
    core_->link->stop();
    core_->table.close();
    if (ended_.wait_for(std::chrono::milliseconds(kThreadPatienceMs)) == std::future_status::ready) {
      thread_.join();
      if (core_->pool != nullptr && ended_.get()) core_->pool->clear();
      return;
    }
    LOG_WARNING("ucx: the thread did not end within {} ms; it is abandoned", kThreadPatienceMs);
    thread_.detach();
  }

 private:
  const RelayOptions options_;
  const Transports transports_;
  const std::shared_ptr<Core> core_;
  std::mutex close_mutex_;
  std::thread thread_;
  std::future<bool> ended_;  // whether nothing was abandoned
};

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<Relay>> make_ucx_relay_from(const char* library, const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const ucx::UcxApi* api, ucx::load_ucx(library));
  return make_ucx_relay_over(*api, options);
}

Result<std::unique_ptr<Relay>> make_ucx_relay_over(const ucx::UcxApi& api, const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const ucx::Transports transports,
                   ucx::choose_transports(options.listen, std::getenv("UCX_TLS"), std::getenv("UCX_NET_DEVICES")));
  ASSIGN_OR_RETURN(std::unique_ptr<ucx::Link> link, ucx::Link::make(api, transports, options));
  auto core = std::make_shared<ucx::Core>(options, std::move(link), transports.memory);
  return std::unique_ptr<Relay>(std::make_unique<ucx::UcxRelay>(options, transports, std::move(core)));
}

Result<std::unique_ptr<Relay>> make_ucx_relay(const RelayOptions& options) {
  return make_ucx_relay_from(kUcxLibrary, options);
}

}  // namespace millrace
