#include "relay/session/session_relay.h"

#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "relay/ticker.h"

namespace millrace::session {
namespace {

class SessionRelay final : public Relay {
 public:
  explicit SessionRelay(std::shared_ptr<Core> core) : core_(std::move(core)) {
    std::promise<bool> clean;
    ended_ = clean.get_future();
    // The thread has the core, not this object: a transport that hangs is abandoned with both, and close() must be able
    // to return. What it waits for is a promise, as a thread cannot be joined with a time limit.
    thread_ = std::thread([core = core_, clean = std::move(clean)]() mutable { clean.set_value(core->run()); });
    // A channel whose calls may hang would keep the loop from its deadlines: then a thread of their own looks at them.
    if (core_->channel->traits().separate_deadlines) {
      ticker_ = std::make_unique<Ticker>([this] { return core_->table.expire(monotonic_ms()); });
    }
  }
  ~SessionRelay() override { SessionRelay::close(); }

  RelayCapabilities capabilities() const override { return core_->channel->capabilities(); }
  std::string address() const override { return core_->channel->address(); }
  RelayBooks books() const override { return core_->table.books(); }
  void cancel(RelayOp op) override { core_->table.cancel(op); }
  void cleanup(ReqId request) override { core_->table.cleanup(request); }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(millrace::check_put(request, core_->options.pool_bytes));
    RETURN_IF_ERROR(core_->channel->check_put(request));
    const std::size_t bytes = total_bytes(request);
    const int64_t now_ms = monotonic_ms();
    ASSIGN_OR_RETURN(const RelayOp op, core_->table.open_put(std::move(request), bytes, now_ms));
    // On the caller's thread, which may copy; the op is pinned, so no end takes the parts away meanwhile.
    Result<std::string> descriptor = core_->writer.put(op);
    if (!descriptor.ok()) {
      core_->table.forget(op);
      return descriptor.status();
    }
    core_->table.unpin(op);
    // The loop may sleep beyond the lease of this put.
    wake_by(now_ms + core_->options.lease_ms);
    // An open put shortens the naps of such a loop, see nap_us(): it wakes to take that in.
    if (core_->channel->traits().polled) core_->loop.post([] {});
    return PutTicket{op, std::move(*descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    const std::string name = core_->channel->capabilities().name;
    // Everything that the descriptor has is checked before the op is opened: its errors are those of the call, and
    // `done` is not called for them.
    ASSIGN_OR_RETURN(const Descriptor descriptor, descriptor_of(request, name));
    RETURN_IF_ERROR(check_total(request.sizes));
    GetTask task;
    ASSIGN_OR_RETURN(task.writer, core_->channel->target_of(descriptor));
    if (!task.writer.device.empty() && task.writer.device.size() != request.sizes.size()) {
      return invalid_argument("the descriptor has the addresses of {} parts; wanted {}", task.writer.device.size(),
                              request.sizes.size());
    }
    task.put = descriptor.op.value;
    task.generation = descriptor.generation;
    task.sizes_hash = descriptor.sizes_hash;
    task.total = descriptor.bytes;
    const int64_t now_ms = monotonic_ms();
    const int64_t due_ms = now_ms + request.timeout_ms;
    ASSIGN_OR_RETURN(task.op, core_->table.open_get(std::move(request), now_ms));
    const RelayOp op = task.op;
    // The bare pointer is safe: the core owns the loop, and with it what is posted. Before unpin(), so that an end that
    // waits for it, whose get_ended() is posted behind this, finds the get started.
    core_->loop.post([core = core_.get(), task = std::move(task)] { core->reader.start(task); });
    core_->table.unpin(op);
    if (ticker_) wake_by(due_ms);
    return op;
  }

  void close() override {
    const std::lock_guard lock(close_mutex_);
    if (!thread_.joinable()) return;
    // One limit for all that follows: the table's close() waits as well.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kRelayCloseMs);
    // First the stop: from now on the loop lives for the farewell only, in which the ends of the next call reach the
    // peers.
    core_->stop();
    core_->table.close();
    if (ticker_) ticker_->stop();
    if (ended_.wait_until(until) == std::future_status::ready) {
      thread_.join();
      return;
    }
    LOG_WARNING("the thread of a {} relay did not end within {} ms; it is abandoned with its transport",
                core_->channel->capabilities().name, kRelayCloseMs);
    // It keeps the core alive, and with it the state that its transport still uses.
    thread_.detach();
  }

 private:
  // The sum that the descriptor has may have gone round.
  Status check_total(const std::vector<std::size_t>& sizes) const {
    const std::size_t trait = core_->channel->traits().max_get_bytes;
    const std::size_t most = trait > 0 ? trait : core_->options.pool_bytes;
    std::size_t total = 0;
    for (const std::size_t size : sizes) {
      if (size > most - total) {
        return error(StatusCode::kTooLarge, "the put has over {} bytes, the most that this relay receives", most);
      }
      total += size;
    }
    return ok_status();
  }

  void wake_by(int64_t due_ms) {
    if (ticker_) {
      ticker_->wake();
    } else {
      core_->loop.wake_by(due_ms);
    }
  }

  const std::shared_ptr<Core> core_;
  std::mutex close_mutex_;
  std::thread thread_;
  std::future<bool> ended_;  // whether nothing was abandoned
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace

Result<std::unique_ptr<Relay>> make_session_relay(const RelayOptions& options, const MakeChannel& make) {
  RETURN_IF_ERROR(check_options(options));
  auto core = std::make_shared<Core>(options);
  RETURN_IF_ERROR(core->loop.open());
  ASSIGN_OR_RETURN(core->channel, make(*core));
  return std::unique_ptr<Relay>(std::make_unique<SessionRelay>(std::move(core)));
}

}  // namespace millrace::session
