#include "control/event_socket.h"

#include <zmq.h>

#include <charconv>

#include "base/log.h"

namespace millrace {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";

// The number after the last colon, or -1.
int port_of(std::string_view endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  int port = -1;
  const char* end = endpoint.data() + endpoint.size();
  const auto [rest, code] = std::from_chars(endpoint.data() + colon + 1, end, port);
  return code == std::errc() && rest == end ? port : -1;
}

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

Status check_event_endpoint(const std::string& endpoint, bool anywhere) {
  const auto wanted = [&](const char* what) {
    return invalid_argument("--kv-events is '{}'; wanted {}", endpoint.substr(0, kMaxEndpointBytes), what);
  };
  if (endpoint.size() > kMaxEndpointBytes) return wanted("at most 96 bytes");
  if (endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size()) return ok_status();
  if (!endpoint.starts_with(kTcp)) return wanted("tcp://127.0.0.1:PORT or ipc:///PATH");
  const int port = port_of(endpoint);
  if (port < 1 || port > 65535) return wanted("a port from 1 to 65535 (one for each scheduler)");
  const auto host = std::string_view(endpoint).substr(kTcp.size(), endpoint.rfind(':') - kTcp.size());
  if (host.empty()) return wanted("tcp://127.0.0.1:PORT or ipc:///PATH");
  if (!anywhere && !is_loopback(host)) {
    return wanted("a loopback address, or --kv-events-anywhere beside it: events tell what the prompts hold");
  }
  return ok_status();
}

std::string nth_endpoint(const std::string& endpoint, int n) {
  if (n == 0) return endpoint;
  if (!endpoint.starts_with(kTcp)) return fmt::format("{}-{}", endpoint, n);
  const int port = port_of(endpoint);
  return port < 0 ? endpoint : fmt::format("{}:{}", endpoint.substr(0, endpoint.rfind(':')), port + n);
}

Result<std::unique_ptr<EventSocket>> EventSocket::bind(ZmqContext& context, const std::string& endpoint,
                                                       bool anywhere) {
  RETURN_IF_ERROR(check_event_endpoint(endpoint, anywhere));
  void* socket = zmq_socket(context.handle(), ZMQ_PUB);
  if (socket == nullptr) return internal_error("cannot open a socket for {}: {}", endpoint, zmq_strerror(zmq_errno()));
  std::unique_ptr<EventSocket> out(new EventSocket(socket));
  const auto set = [&](int option, auto value) { return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0; };
  // A listener only ever sends its subscriptions.
  constexpr int64_t kMaxSubscriptionBytes = 1024;
  const bool good = set(ZMQ_SNDHWM, kEventHighWater) && set(ZMQ_LINGER, 0) && set(ZMQ_IPV6, 1) &&
                    set(ZMQ_MAXMSGSIZE, kMaxSubscriptionBytes) && set(ZMQ_HANDSHAKE_IVL, kHandshakeTimeoutMs);
  if (!good) return internal_error("cannot set the limits of {}: {}", endpoint, zmq_strerror(zmq_errno()));
  if (zmq_bind(socket, endpoint.c_str()) != 0) {
    return error(StatusCode::kUnavailable, "cannot publish KV events at {}: {}", endpoint, zmq_strerror(zmq_errno()));
  }
  return out;
}

EventSocket::~EventSocket() { zmq_close(socket_); }

void EventSocket::publish(std::string_view topic, std::string_view payload) {
  char sequence[8];
  for (int i = 0; i < 8; ++i) sequence[i] = static_cast<char>(sequence_ >> (8 * (7 - i)));
  ++sequence_;
  const auto send = [this](std::string_view frame, int flags) {
    return zmq_send(socket_, frame.data(), frame.size(), flags | ZMQ_DONTWAIT) >= 0;
  };
  const bool sent = send(topic, ZMQ_SNDMORE) && send({sequence, sizeof sequence}, ZMQ_SNDMORE) && send(payload, 0);
  if (!sent) LOG_WARNING("an event was not published: {}", zmq_strerror(zmq_errno()));
}

}  // namespace millrace
