#include "relay/shm/shm_relay.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "relay/op_table.h"
#include "relay/shm/acceptor.h"
#include "relay/shm/fetcher.h"
#include "relay/shm/poller.h"
#include "relay/shm/writer.h"

namespace millrace {
namespace {

using namespace shm;

// How long the loop sleeps at most: while something is open (a lost ring is made good then), when something was open
// a moment ago (so that puts in a row need no ring for their leases), and else.
constexpr int64_t kOpenSleepMs = 100;
constexpr int64_t kRestSleepMs = 1'000;
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

int64_t sooner(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

class ShmRelay final : public Relay {
 public:
  static Result<std::unique_ptr<Relay>> make(const RelayOptions& options) {
    RETURN_IF_ERROR(check_options(options));
    ASSIGN_OR_RETURN(Poller poller, Poller::make());
    std::unique_ptr<ShmRelay> relay(new ShmRelay(options, std::move(poller)));
    ASSIGN_OR_RETURN(relay->writer_, Writer::make(options, relay->self_, relay->table_));
    const auto next_id = [r = relay.get()] { return r->next_id_.fetch_add(1); };
    ASSIGN_OR_RETURN(relay->acceptor_,
                     Acceptor::make(options, relay->self_, relay->table_, *relay->writer_, relay->poller_, next_id));
    const auto gone = [r = relay.get()](const InstanceId& peer) {
      r->writer_->destination_gone(destination_hash(peer));
    };
    relay->fetcher_ = std::make_unique<Fetcher>(options, relay->self_, relay->table_, relay->poller_, next_id, gone);
    relay->thread_ = std::thread([r = relay.get()] { r->run(); });
    return std::unique_ptr<Relay>(std::move(relay));
  }
  ~ShmRelay() override { close(); }

  RelayCapabilities capabilities() const override {
    RelayCapabilities can;
    can.name = "shm";
    can.same_process = true;
    can.same_host = true;
    can.mapped_receive = true;
    can.max_put_bytes = options_.pool_bytes;
    return can;
  }
  std::string address() const override { return address_of(self_); }
  Result<PutTicket> put(PutRequest request) override;
  Result<RelayOp> get(GetRequest request) override {
    const int64_t due = monotonic_ms() + request.timeout_ms;
    Result<RelayOp> op = fetcher_->get(std::move(request));
    // Most are over by now, and waking the loop for their deadlines would cost more than they did.
    if (op.ok() && table_.get(*op) != nullptr) expect(due);
    return op;
  }
  void cancel(RelayOp op) override { table_.cancel(op); }
  void cleanup(ReqId request) override { table_.cleanup(request); }
  RelayBooks books() const override { return table_.books(); }
  void close() override {
    std::call_once(closed_, [this] { shut_down(); });
  }

 private:
  ShmRelay(const RelayOptions& options, Poller poller)
      : options_(options),
        poller_(std::move(poller)),
        table_(options, [this](RelayOp op, bool is_put, const Status&) { return !is_put || writer_->ended(op); }) {}

  void run();
  // The loop shall be awake at due_ms.
  void expect(int64_t due_ms) {
    if (due_ms < awake_at_ms_.load()) poller_.ring();
  }
  void shut_down();

  const RelayOptions options_;
  const InstanceId self_ = make_instance_id();
  Poller poller_;
  std::atomic<uint64_t> next_id_{16};  // below: the poller's and the acceptor's own
  OpTable table_;
  std::unique_ptr<Writer> writer_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Fetcher> fetcher_;
  std::atomic<int64_t> awake_at_ms_{kForever};  // when the loop wakes by itself; 0: it is awake, and will look
  std::atomic<uint64_t> puts_{0};               // so far
  std::atomic<bool> stopping_{false};
  std::once_flag closed_;
  std::thread thread_;
};

Result<PutTicket> ShmRelay::put(PutRequest request) {
  RETURN_IF_ERROR(check_put(request, options_.pool_bytes));
  for (const SharedBytes& part : request.parts) {
    if (part.device() != Device::kHost) return Status(StatusCode::kUnsupported, "shm relay: a part is not host memory");
  }
  InstanceId destination;
  const bool directed = !request.destination.empty();
  if (directed) {
    ASSIGN_OR_RETURN(destination, parse_address(request.destination));
  }
  const std::size_t bytes = total_bytes(request);
  const RelayBooks books = table_.books();
  if (books.puts >= options_.credits || bytes > options_.pool_bytes - books.held_bytes) {
    writer_->sweep();  // what was released a moment ago counts
  }
  ASSIGN_OR_RETURN(const RelayOp op, table_.open_put(std::move(request), bytes, monotonic_ms()));
  // The op is open and pinned from open_put() to unpin(): cancel() and close() end it, but its request and slot stay
  // until then.
  const std::shared_ptr<const PutRequest> open = table_.put(op);
  Result<Descriptor> descriptor = writer_->offer(op, *open, directed ? destination_hash(destination) : 0);
  if (!descriptor.ok()) {
    table_.forget(op);
    return descriptor.status();
  }
  PutTicket ticket{op, encode_descriptor(*descriptor)};
  table_.unpin(op);
  puts_.fetch_add(1, std::memory_order_relaxed);
  expect(monotonic_ms() + options_.lease_ms);
  // The destination may be dead before it ever connects: the fetcher's connection to it shows that, and the put ends
  // before its lease.
  if (directed && !writer_->has_reader(destination_hash(destination))) fetcher_->monitor(destination);
  return ticket;
}

void ShmRelay::run() {
  uint64_t puts_before = 0;
  while (!stopping_.load()) {
    // Every thread that opens something from here on rings, until it is known when we wake.
    awake_at_ms_.store(kForever);
    const int64_t now = monotonic_ms();
    int64_t next = sooner(table_.expire(now), sooner(acceptor_->tick(now), fetcher_->tick(now)));
    const bool more = fetcher_->copy_slice();
    // First the flag, then the look at the holds. A release writes its hold, then reads the flag: whichever comes
    // first, the sweep sees the hold or the reader rings.
    writer_->set_asleep(!more);
    writer_->sweep();
    const RelayBooks books = table_.books();
    const uint64_t puts = puts_.load(std::memory_order_relaxed);
    if (books.puts > 0 || books.held_bytes > 0) next = sooner(next, kOpenSleepMs);
    if (puts != std::exchange(puts_before, puts)) next = sooner(next, kRestSleepMs);
    if (more) next = 0;
    if (next >= 0) awake_at_ms_.store(now + next);
    const std::vector<Poller::Event> events = poller_.wait(static_cast<int>(std::min<int64_t>(next, 1'000'000)));
    // From here on expect() need not ring: this turn looks at all deadlines before it sleeps.
    awake_at_ms_.store(0);
    writer_->set_asleep(false);
    for (const Poller::Event& event : events) {
      // An id of neither is of a socket that an earlier event of this batch has closed.
      if (!acceptor_->on_event(event)) (void)fetcher_->on_event(event);
    }
  }
}

void ShmRelay::shut_down() {
  if (!thread_.joinable()) return;  // make() failed half-way
  // First, so that readers get kUnavailable for what close() ends. The loop still runs during the table's close(),
  // which waits for ops that the loop has pinned.
  writer_->stop_offering();
  table_.close();
  stopping_.store(true);
  poller_.ring();
  thread_.join();
  fetcher_->close();
  acceptor_->close();
  writer_->close();
}

}  // namespace

Result<std::unique_ptr<Relay>> make_shm_relay(const RelayOptions& options) { return ShmRelay::make(options); }

}  // namespace millrace
