#include "relay/tcp/tcp_relay.h"

#include "relay/session/session_relay.h"
#include "relay/tcp/sockets.h"

namespace millrace {
namespace tcp {
namespace {

constexpr const char* kBackend = "tcp";
constexpr std::string_view kDefaultListen = "127.0.0.1:0";

// Bytes are pushed: each connection takes one DATA frame at a time.
class TcpChannel final : public Channel {
 public:
  explicit TcpChannel(Core& core) : core_(core), sockets_(core, core.writer, core.reader, true) {
    traits_.frames.frame_bytes = kFrameBytes;
    traits_.range_bytes = kRangeBytes;
    traits_.ranges_in_flight = kRangesInFlight;
    traits_.reconnects = 1;
  }
  Status open(const SocketAddress& listen) { return sockets_.open(listen); }

  const Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override { return socket_capabilities(kBackend, core_, sockets_.bound()); }
  std::string address() const override { return sockets_.address(); }
  Result<std::string> store(Put&) override { return sockets_.bound().to_string(); }
  Result<Target> target_of(const Descriptor& descriptor) const override {
    return sockets_.target_of(descriptor.instance, descriptor.tail);
  }
  Result<Link*> connect(const Target& target) override { return sockets_.connect(target); }
  std::size_t links_wanted(const Target& target, uint64_t total) const override {
    if (total <= kRangeBytes) return 1;
    const int chosen = target.loopback ? 1 : kStreamsToAnotherHost;
    return static_cast<std::size_t>(core_.options.streams > 0 ? core_.options.streams : chosen);
  }
  void flush() override { sockets_.flush(); }
  int64_t check_time(int64_t now_ms) override { return sockets_.check_time(now_ms); }
  void compensate_pause(int64_t now_ms) override { sockets_.compensate_pause(now_ms); }
  bool shut_down() override {
    sockets_.shut_down();
    return true;
  }

 private:
  Core& core_;
  Traits traits_;
  Sockets sockets_;
};

}  // namespace

RelayCapabilities socket_capabilities(const char* name, const Core& core, const SocketAddress& bound) {
  RelayCapabilities capabilities;
  capabilities.name = name;
  capabilities.same_process = capabilities.same_host = true;
  capabilities.across_hosts = !bound.loopback();
  capabilities.max_put_bytes = core.options.pool_bytes;
  return capabilities;
}

}  // namespace tcp

Result<std::unique_ptr<Relay>> make_tcp_relay(const RelayOptions& options) {
  const std::string listen = options.listen.empty() ? std::string(tcp::kDefaultListen) : options.listen;
  ASSIGN_OR_RETURN(const tcp::SocketAddress address, tcp::parse_host_port(listen));
  RETURN_IF_ERROR(check_options(options));
  if (options.streams > tcp::kMaxStreams) {
    return invalid_argument("relay option streams is {}; wanted 0..{}", options.streams, tcp::kMaxStreams);
  }
  RETURN_IF_ERROR(tcp::check_reach(address, options.secret));
  return session::make_session_relay(options, [&](session::Core& core) -> Result<std::unique_ptr<session::Channel>> {
    auto channel = std::make_unique<tcp::TcpChannel>(core);
    RETURN_IF_ERROR(channel->open(address));
    return std::unique_ptr<session::Channel>(std::move(channel));
  });
}

}  // namespace millrace
