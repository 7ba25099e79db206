#include "control/zmq_mailbox.h"

#include <poll.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <mutex>

#include "control/counters.h"
#include "control/frame.h"
#include "control/inbox_waker.h"
#include "control/local_box.h"
#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

// "" where the transport has none. tests/tsan.supp names this function.
std::string_view peer_address_of(zmq_msg_t* message) {
  const char* address = zmq_msg_gets(message, "Peer-Address");
  return address != nullptr ? address : "";
}

class ZmqInbox final : public Inbox {
 public:
  static Result<std::unique_ptr<Inbox>> make(OpenedSocket opened) {
    int signal_fd = -1;
    std::size_t size = sizeof signal_fd;
    // The descriptor is for poll() beside the waker's; it is never read.
    if (zmq_getsockopt(opened.socket.get(), ZMQ_FD, &signal_fd, &size) != 0) {
      return internal_error("{} has no descriptor: {}", opened.endpoint, zmq_strerror(zmq_errno()));
    }
    return std::unique_ptr<Inbox>(new ZmqInbox(std::move(opened), signal_fd));
  }
  // frame_ keeps the last message, up to kMaxFrameBytes, until the next one: zmq_msg_recv() releases the old content.
  ~ZmqInbox() override { zmq_msg_close(&frame_); }

  std::optional<wire::Message> receive(int timeout_ms) override {
    if (!next_frame(timeout_ms)) {
      // Only here: a wake stands until a receive() ends without a message, so none is lost behind a queue of messages.
      if (waker_) waker_->take();
      return std::nullopt;
    }
    if (zmq_msg_more(&frame_) != 0) return drop_parts();
    return decode_frame({static_cast<const char*>(zmq_msg_data(&frame_)), zmq_msg_size(&frame_)},
                        peer_address_of(&frame_));
  }

  std::shared_ptr<Waker> waker() override {
    if (!waker_) waker_ = std::make_shared<InboxWaker>();
    return waker_;
  }
  std::string endpoint() const override { return endpoint_; }

 private:
  ZmqInbox(OpenedSocket opened, int signal_fd)
      : socket_(std::move(opened.socket)), endpoint_(std::move(opened.endpoint)), signal_fd_(signal_fd) {
    zmq_msg_init(&frame_);
  }

  // A signal may interrupt the call; that is no end of the queue.
  bool try_receive() {
    int got = 0;
    do {
      got = zmq_msg_recv(&frame_, socket_.get(), ZMQ_DONTWAIT);
    } while (got < 0 && zmq_errno() == EINTR);
    return got >= 0;
  }

  // The library's descriptor is readable whenever it has an event for this socket, of which a message is only one kind:
  // so it may take several looks until there is one, or the time is over.
  bool next_frame(int timeout_ms) {
    if (try_receive()) return true;
    // Each look before a wait is needed: the descriptor signals a change, once, so poll() while messages are queued
    // could sleep for ever.
    if (timeout_ms == 0) return false;
    const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
    // ETERM: the context is shut down, and the descriptor stays readable. Without the check this loop would spin.
    for (int left = timeout_ms; zmq_errno() != ETERM;) {
      const bool woken = wait(left);
      if (try_receive()) return true;
      if (woken) return false;
      if (timeout_ms < 0) continue;
      // Rounded up, so that the wait is not shorter than what was asked for.
      const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (rest <= 0) return false;
      left = static_cast<int>(rest);
    }
    return false;
  }

  // True when this inbox was woken. The word stands until receive() returns without a message.
  bool wait(int timeout_ms) {
    pollfd items[2] = {{signal_fd_, POLLIN, 0}, {-1, POLLIN, 0}};
    if (!waker_) {
      ::poll(items, 1, timeout_ms);
      return false;
    }
    if (!waker_->begin_waiting()) return true;
    items[1].fd = waker_->fd();
    ::poll(items, 2, timeout_ms);
    waker_->end_waiting();
    // Drained even if a message came too, else the descriptor ends every later wait at once.
    if (items[1].revents != 0) waker_->drain();
    return waker_->woken();
  }

  std::nullopt_t drop_parts() {
    // ZeroMQ delivers all parts or none, so the rest is there; left alone, it would be taken for frames of their own.
    while (zmq_msg_more(&frame_) != 0 && try_receive()) continue;
    count(BadFrame::kMultipart, "wanted one part");
    return std::nullopt;
  }

  Socket socket_;
  std::string endpoint_;
  int signal_fd_;
  std::shared_ptr<InboxWaker> waker_;
  zmq_msg_t frame_;
};

class ZmqOutbox final : public Outbox {
 public:
  ZmqOutbox(OpenedSocket opened, std::shared_ptr<LinkState> state, bool keyed)
      : socket_(std::move(opened.socket)),
        endpoint_(std::move(opened.endpoint)),
        state_(std::move(state)),
        keyed_(keyed) {
    CHECK(state_ != nullptr);
  }

  Status send(wire::Message& message) override {
    // Encoded without the lock, so that threads that send at the same time wait for the copy into the queue alone. The
    // message itself is not changed: after a refusal the caller still has it.
    ASSIGN_OR_RETURN(const std::string frame, wire::encode(message));
    std::lock_guard lock(mutex_);
    while (zmq_send(socket_.get(), frame.data(), frame.size(), ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() == EINTR) continue;
      if (zmq_errno() != EAGAIN) return Status(StatusCode::kUnavailable, zmq_strerror(zmq_errno()));
      // EAGAIN has several reasons, and the caller reacts to them differently: a full queue is tried again, no receiver
      // is not. The state comes from the monitor's thread and may be a moment late; both answers leave the message with
      // the caller.
      if (state_->connected.load()) {
        return Status(StatusCode::kResourceExhausted, "the receiving stage takes no more messages now");
      }
      if (state_->refused.load()) {
        return error(StatusCode::kUnavailable, "{} hung up in the handshake: its key is {}", endpoint_,
                     keyed_ ? "not ours, or it has none" : "wanted, and we have none");
      }
      return error(StatusCode::kUnavailable, "no receiver is connected at {}", endpoint_);
    }
    return ok_status();
  }

 private:
  std::mutex mutex_;  // a ZeroMQ socket may change threads only across a full fence
  Socket socket_;
  std::string endpoint_;
  std::shared_ptr<LinkState> state_;
  const bool keyed_;
};

// Its receiver may come and go: the box is looked up again when it is closed.
class InprocOutbox final : public Outbox {
 public:
  InprocOutbox(ZmqContext& context, std::string name, BeforeConnected policy)
      : context_(context), name_(std::move(name)), keep_(policy == BeforeConnected::kKeep) {}

  Status send(wire::Message& message) override {
    const std::shared_ptr<LocalBox> box = reader();
    if (!box) return error(StatusCode::kUnavailable, "no inbox is bound to inproc://{}", name_);
    return box->push(message);
  }

 private:
  std::shared_ptr<LocalBox> reader() {
    std::lock_guard lock(mutex_);
    // kKeep makes the box where no inbox is bound yet, and what is pushed waits in it.
    if (!box_ || box_->closed()) box_ = context_.find_inproc(name_, keep_);
    return box_;
  }

  ZmqContext& context_;
  const std::string name_;
  const bool keep_;
  std::mutex mutex_;
  std::shared_ptr<LocalBox> box_;
};

SocketPlan plan_of(int type, const Endpoint& endpoint, const SharedKey* key) {
  SocketPlan plan;
  plan.type = type;
  plan.endpoint = endpoint;
  plan.max_frame_bytes = static_cast<int64_t>(wire::kMaxFrameBytes);
  plan.send_high_water = plan.receive_high_water = kMailboxCapacity;
  // A stage's last messages (its end of a request) leave after it closed; a receiver that takes nothing delays the
  // close by so much and no more.
  plan.linger_ms = kLingerMs;
  plan.key = key;
  return plan;
}

}  // namespace

Result<std::unique_ptr<Inbox>> bind_inbox(ZmqContext& context, const std::string& endpoint, const SharedKey* key) {
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint));
  if (where.transport == Transport::kInproc) {
    ASSIGN_OR_RETURN(auto box, context.bind_inproc(where.name));
    return make_local_inbox(std::move(box), where.to_string());
  }
  SocketPlan plan = plan_of(ZMQ_PULL, where, key);
  plan.bind = true;
  ASSIGN_OR_RETURN(OpenedSocket opened, open_socket(context, plan));
  return ZmqInbox::make(std::move(opened));
}

Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               const OutboxOptions& options) {
  // 0 would be "no limit" for ZeroMQ.
  if (options.queue_limit < 1 || options.queue_limit > kMailboxCapacity) {
    return invalid_argument("the queue limit is {}; wanted 1 to {}", options.queue_limit, kMailboxCapacity);
  }
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint));
  if (where.transport == Transport::kInproc) {
    return std::shared_ptr<Outbox>(std::make_shared<InprocOutbox>(context, where.name, options.policy));
  }
  SocketPlan plan = plan_of(ZMQ_PUSH, where, options.key);
  plan.send_high_water = options.queue_limit;
  plan.refuse_unconnected = options.policy == BeforeConnected::kRefuse;
  plan.state = std::make_shared<LinkState>();
  ASSIGN_OR_RETURN(OpenedSocket opened, open_socket(context, plan));
  // Over ipc and inproc a key is ignored, so an error must not speak of one.
  const bool keyed = options.key != nullptr && where.transport == Transport::kTcp;
  return std::shared_ptr<Outbox>(std::make_shared<ZmqOutbox>(std::move(opened), plan.state, keyed));
}

Result<std::shared_ptr<Outbox>> connect_outbox(ZmqContext& context, const std::string& endpoint,
                                               BeforeConnected policy) {
  return connect_outbox(context, endpoint, OutboxOptions{.policy = policy});
}

}  // namespace millrace
