#include "control/zmq_mailbox.h"

#include <zmq.h>

#include <atomic>
#include <mutex>

#include "base/log.h"
#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace {
namespace {

std::atomic<uint64_t> g_bad_frames{0};

struct SocketClose {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, SocketClose>;

Status zmq_failure(std::string_view what, const std::string& endpoint) {
  return internal_error("{} {}: {}", what, endpoint, zmq_strerror(zmq_errno()));
}

Result<Socket> open_socket(ZmqContext& context, int type, const std::string& endpoint, bool refuse_unconnected) {
  Socket socket(zmq_socket(context.handle(), type));
  if (!socket) return zmq_failure("cannot open a socket for", endpoint);
  const auto set = [&](int option, auto value) {
    return zmq_setsockopt(socket.get(), option, &value, sizeof(value)) == 0;
  };
  const bool good = set(ZMQ_MAXMSGSIZE, static_cast<int64_t>(wire::kMaxFrameBytes)) &&
                    set(ZMQ_SNDHWM, kMailboxCapacity) && set(ZMQ_RCVHWM, kMailboxCapacity) &&
                    set(ZMQ_LINGER, kLingerMs) && set(ZMQ_HANDSHAKE_IVL, kHandshakeTimeoutMs) &&
                    set(ZMQ_RECONNECT_IVL, kReconnectMs) && set(ZMQ_IMMEDIATE, refuse_unconnected ? 1 : 0);
  if (!good) return zmq_failure("cannot set the limits of", endpoint);
  return socket;
}

class ZmqInbox : public Inbox {
 public:
  explicit ZmqInbox(Socket socket) : socket_(std::move(socket)) { zmq_msg_init(&frame_); }
  ~ZmqInbox() override { zmq_msg_close(&frame_); }

  std::optional<wire::Message> receive(int timeout_ms) override {
    while (zmq_msg_recv(&frame_, socket_.get(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      zmq_pollitem_t item{socket_.get(), 0, ZMQ_POLLIN, 0};
      if (timeout_ms == 0 || zmq_poll(&item, 1, timeout_ms) <= 0) return std::nullopt;
      timeout_ms = 0;  // one wait a call: the next failure to receive returns
    }
    auto message = wire::decode({static_cast<const char*>(zmq_msg_data(&frame_)), zmq_msg_size(&frame_)});
    if (message.ok()) return std::move(message).value();
    if (g_bad_frames.fetch_add(1) < kLoggedBadFrames) LOG_WARNING("dropped a frame: {}", message.status().message());
    return std::nullopt;
  }

 private:
  static constexpr uint64_t kLoggedBadFrames = 100;  // then silence: a hostile peer must not fill the log

  Socket socket_;
  zmq_msg_t frame_;
};

class ZmqOutbox : public Outbox {
 public:
  explicit ZmqOutbox(Socket socket) : socket_(std::move(socket)) {}

  Status send(wire::Message& message) override {
    ASSIGN_OR_RETURN(const std::string frame, wire::encode(message));
    std::lock_guard lock(mutex_);
    while (zmq_send(socket_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() == EAGAIN) {
        return Status(StatusCode::kResourceExhausted, "the receiving stage takes no more messages now");
      }
      return Status(StatusCode::kUnavailable, zmq_strerror(zmq_errno()));
    }
    return ok_status();
  }

 private:
  std::mutex mutex_;  // a ZeroMQ socket may change threads only across a full fence
  Socket socket_;
};

}  // namespace

ZmqContext::ZmqContext() : handle_(zmq_ctx_new()) { CHECK(handle_ != nullptr); }
ZmqContext::~ZmqContext() { zmq_ctx_term(handle_); }

Result<std::unique_ptr<Inbox>> bind_inbox(ZmqContext& context, const std::string& endpoint) {
  ASSIGN_OR_RETURN(Socket socket, open_socket(context, ZMQ_PULL, endpoint, false));
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return zmq_failure("cannot bind", endpoint);
  return std::unique_ptr<Inbox>(std::make_unique<ZmqInbox>(std::move(socket)));
}

Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               BeforeConnected policy) {
  ASSIGN_OR_RETURN(Socket socket, open_socket(context, ZMQ_PUSH, endpoint, policy == BeforeConnected::kRefuse));
  if (zmq_connect(socket.get(), endpoint.c_str()) != 0) return zmq_failure("cannot connect to", endpoint);
  return std::shared_ptr<Outbox>(std::make_shared<ZmqOutbox>(std::move(socket)));
}

uint64_t bad_frame_count() { return g_bad_frames.load(); }

}  // namespace millrace
