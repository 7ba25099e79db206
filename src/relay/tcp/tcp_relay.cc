#include "relay/tcp/tcp_relay.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "relay/descriptor.h"
#include "relay/instance_id.h"
#include "relay/op_table.h"
#include "relay/tcp/address.h"
#include "relay/tcp/io_loop.h"
#include "relay/tcp/limits.h"
#include "relay/tcp/reader_side.h"
#include "relay/tcp/writer_side.h"

namespace millrace {
namespace {

using tcp::InstanceAddress;
using tcp::SocketAddress;

constexpr std::string_view kBackend = "tcp";
constexpr std::string_view kDefaultListen = "127.0.0.1:0";
constexpr int64_t kSweepMs = 10;  // what is due after something happened is looked at so much later, at the latest

Status check(const RelayOptions& options, const SocketAddress& listen) {
  RETURN_IF_ERROR(check_options(options));
  if (options.streams > tcp::kMaxStreams) {
    return invalid_argument("relay option streams is {}; wanted 0..{}", options.streams, tcp::kMaxStreams);
  }
  return tcp::check_reach(listen, options.secret);
}

class TcpRelay : public Relay {
 public:
  TcpRelay(const RelayOptions& options, const InstanceId& instance)
      : options_(options),
        instance_(instance),
        table_(options, [this](RelayOp op, bool is_put, const Status& status) { return ended(op, is_put, status); }),
        writer_(loop_, table_, options),
        reader_(loop_, table_, options) {}
  ~TcpRelay() override { TcpRelay::close(); }

  Status open(const SocketAddress& listen) {
    RETURN_IF_ERROR(loop_.open());
    ASSIGN_OR_RETURN(const int listener, tcp::listen_at(listen, bound_));
    const tcp::Identity self{key_of(instance_), address(), options_.secret};
    RETURN_IF_ERROR(writer_.open(self, listener));
    reader_.open(self);
    loop_.start([this](int64_t now_ms) { return turn_end(now_ms); });
    return ok_status();
  }

  RelayCapabilities capabilities() const override {
    RelayCapabilities c;
    c.name = kBackend;
    c.same_process = c.same_host = true;
    c.across_hosts = !bound_.loopback();
    c.max_put_bytes = options_.pool_bytes;
    return c;
  }

  std::string address() const override { return tcp::format_instance(bound_, key_of(instance_)); }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, options_.pool_bytes));
    for (const SharedBytes& part : request.parts) {
      if (part.device() != Device::kHost) {
        return Status(StatusCode::kUnsupported, "the part is in device memory; the tcp relay moves host memory");
      }
    }
    Descriptor descriptor;
    descriptor.backend = kBackend;
    descriptor.instance = instance_;
    describe_sizes(part_sizes(request.parts), descriptor);
    descriptor.tail = bound_.to_string();
    const int64_t now_ms = relay_now_ms();
    ASSIGN_OR_RETURN(descriptor.op, table_.open_put(std::move(request), descriptor.bytes, now_ms));
    descriptor.generation = writer_.generation_of(descriptor.op);
    table_.unpin(descriptor.op);
    loop_.wake_by(now_ms + options_.lease_ms);
    return PutTicket{descriptor.op, encode_descriptor(descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    ASSIGN_OR_RETURN(const Descriptor descriptor, descriptor_of(request, kBackend));
    if (descriptor.bytes > options_.pool_bytes) {
      return error(StatusCode::kTooLarge, "the put has {} bytes; this relay takes at most {}", descriptor.bytes,
                   options_.pool_bytes);
    }
    tcp::GetOrder order;
    ASSIGN_OR_RETURN(order.writer.socket, tcp::parse_host_port(descriptor.tail));
    if (order.writer.socket.port() == 0) return invalid_argument("the descriptor names port 0");
    if (!order.writer.socket.loopback() && options_.secret.empty()) {
      return invalid_argument("the put is beyond this host, and there is no secret; wanted one");
    }
    order.writer.instance = key_of(descriptor.instance);
    order.put = descriptor.op.value;
    order.generation = descriptor.generation;
    order.sizes_hash = descriptor.sizes_hash;
    order.total = descriptor.bytes;
    ASSIGN_OR_RETURN(order.op, table_.open_get(std::move(request), relay_now_ms()));
    loop_.post([this, order] { reader_.start(order); });
    table_.unpin(order.op);
    return order.op;
  }

  void cancel(RelayOp op) override {
    table_.cancel(op);
    loop_.post([this] { writer_.release_ended(); });
  }
  void cleanup(ReqId request) override {
    table_.cleanup(request);
    loop_.post([this] { writer_.release_ended(); });
  }
  RelayBooks books() const override { return table_.books(); }

  void close() override {
    const std::lock_guard lock(close_mutex_);
    if (std::exchange(closed_, true)) return;
    loop_.stop();
    writer_.clear();  // no thread but this one touches the sides any more
    reader_.clear();
    writer_.stop_listening();
    table_.close();
  }

 private:
  // The instance's 64 bits that travel in frames.
  static uint64_t key_of(const InstanceId& id) {
    return tcp::load_u64(reinterpret_cast<const std::byte*>(id.random.data())) | 1;
  }

  bool ended(RelayOp op, bool is_put, const Status& status) {
    const StatusCode code = status.code();
    if (is_put) {
      loop_.post([this, op, code] { writer_.put_ended(op, code); });
    } else if (code != StatusCode::kOk) {
      loop_.post([this, op, code] { reader_.get_ended(op, code); });
    }
    return true;  // nobody but this relay reads the bytes, and it holds the put pinned while it does
  }

  int64_t turn_end(int64_t now_ms) {
    due_ms_ = std::min(due_ms_, now_ms + kSweepMs);  // something happened, or it is time
    if (now_ms >= swept_ms_ + kSweepMs) {
      swept_ms_ = now_ms;
      const int64_t next = table_.expire(now_ms);
      writer_.release_ended();
      due_ms_ = std::min(writer_.check_time(now_ms), reader_.check_time(now_ms));
      if (next >= 0) due_ms_ = std::min(due_ms_, now_ms + std::max<int64_t>(next, 1));
    }
    reader_.flush();
    writer_.flush();
    return due_ms_;
  }

  const RelayOptions options_;
  const InstanceId instance_;
  SocketAddress bound_;
  tcp::IoLoop loop_;
  OpTable table_;
  tcp::WriterSide writer_;
  tcp::ReaderSide reader_;
  int64_t due_ms_ = INT64_MAX;
  int64_t swept_ms_ = 0;
  std::mutex close_mutex_;
  bool closed_ = false;
};

}  // namespace

Result<std::unique_ptr<Relay>> make_tcp_relay(const RelayOptions& options) {
  const std::string listen = options.listen.empty() ? std::string(kDefaultListen) : options.listen;
  ASSIGN_OR_RETURN(const SocketAddress address, tcp::parse_host_port(listen));
  RETURN_IF_ERROR(check(options, address));
  auto relay = std::make_unique<TcpRelay>(options, make_instance_id());
  RETURN_IF_ERROR(relay->open(address));
  return std::unique_ptr<Relay>(std::move(relay));
}

}  // namespace millrace
