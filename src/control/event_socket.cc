#include "control/event_socket.h"

#include <zmq.h>

#include <chrono>

#include "base/log.h"

namespace millrace {

Status check_event_endpoint(const std::string& endpoint, bool anywhere) {
  const auto wanted = [&](std::string_view what) {
    return invalid_argument("--kv-events is '{}'; wanted {}", quoted_endpoint(endpoint), what);
  };
  const Result<Endpoint> parsed = parse_endpoint(endpoint);
  if (!parsed.ok()) return parsed.status().with_prefix(fmt::format("--kv-events is '{}'", quoted_endpoint(endpoint)));
  if (parsed->transport == Transport::kInproc) return wanted("tcp://127.0.0.1:PORT or ipc:///PATH");
  if (parsed->transport == Transport::kTcp && parsed->port == 0) {
    return wanted("a port from 1 to 65535 (one for each scheduler)");
  }
  if (!anywhere && !parsed->local()) {
    return wanted("a loopback address, or --kv-events-anywhere beside it: events reveal what the prompts hold");
  }
  return ok_status();
}

std::string nth_endpoint(const std::string& endpoint, int n) {
  CHECK(n >= 0);
  if (n == 0) return endpoint;
  Result<Endpoint> parsed = parse_endpoint(endpoint);
  if (!parsed.ok() || parsed->transport != Transport::kTcp) return fmt::format("{}-{}", endpoint, n);
  // Over the last port: no endpoint any more, as the next check of it reports.
  return fmt::format("{}:{}", endpoint.substr(0, endpoint.rfind(':')), parsed->port + n);
}

Result<std::unique_ptr<EventSocket>> EventSocket::bind(ZmqContext& context, const std::string& endpoint,
                                                       bool anywhere) {
  RETURN_IF_ERROR(check_event_endpoint(endpoint, anywhere));
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint));
  SocketPlan plan;
  plan.type = ZMQ_PUB;
  plan.endpoint = where;
  plan.bind = true;
  plan.max_frame_bytes = 1024;  // a listener only ever sends its subscriptions
  plan.send_high_water = kEventHighWater;
  plan.receive_high_water = kEventHighWater;
  plan.public_without_key = anywhere;
  plan.linger_ms =
      kLingerMs;            // with 0, libzmq 4.3.4 aborts where a listener leaves in the middle of an event meanwhile
  plan.heartbeats = false;  // a listener may speak an older ZMTP, or read late
  Result<OpenedSocket> opened = open_socket(context, plan);
  if (!opened.ok()) return opened.status().with_prefix("KV events");
  return std::unique_ptr<EventSocket>(new EventSocket(std::move(opened->socket)));
}

EventSocket::EventSocket(Socket socket)
    : socket_(std::move(socket)),
      sequence_(static_cast<uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
              .count())) {}

void EventSocket::publish(std::string_view topic, std::string_view payload) {
  // Big-endian, as vLLM's and SGLang's publishers send it: their subscribers read it with int.from_bytes(..., "big").
  char sequence[8];
  for (int i = 0; i < 8; ++i) sequence[i] = static_cast<char>(sequence_ >> (8 * (7 - i)));
  ++sequence_;
  // A PUB socket never blocks: for a listener at its high-water mark the whole message is dropped (zmq_socket(3),
  // ZMQ_PUB).
  const auto send = [this](std::string_view frame, int flags) {
    return zmq_send(socket_.get(), frame.data(), frame.size(), flags | ZMQ_DONTWAIT) >= 0;
  };
  const bool sent = send(topic, ZMQ_SNDMORE) && send({sequence, sizeof sequence}, ZMQ_SNDMORE) && send(payload, 0);
  if (!sent) LOG_WARNING("an event was not published: {}", zmq_strerror(zmq_errno()));
}

}  // namespace millrace
