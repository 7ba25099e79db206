#include "control/abort_bus.h"

#include <zmq.h>

#include <deque>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "control/counters.h"
#include "control/frame.h"
#include "control/socket_service.h"
#include "control/zmq_socket.h"
#include "wire/codec.h"

namespace millrace {
namespace {

// What a subscriber has not read yet.
class Pending {
 public:
  explicit Pending(std::shared_ptr<Waker> waker) : waker_(std::move(waker)) {}

  void add(ReqId id) {
    {
      std::lock_guard lock(mutex_);
      // The newer one is dropped: its reader does not keep up, and each AbortRequest still comes by the inbox.
      if (ids_.size() >= kMaxPendingHints) {
        ++dropped_;
        count_dropped_hint();
        return;
      }
      ids_.push_back(id);
    }
    // Without the lock: the stage that wakes calls next() at once.
    if (waker_) waker_->wake();
  }
  std::optional<ReqId> next() {
    std::lock_guard lock(mutex_);
    if (ids_.empty()) return std::nullopt;
    const ReqId id = ids_.front();
    ids_.pop_front();
    return id;
  }
  uint64_t dropped() const {
    std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  const std::shared_ptr<Waker> waker_;
  mutable std::mutex mutex_;
  std::deque<ReqId> ids_;
  uint64_t dropped_ = 0;
};

class LocalSubscription final : public AbortSubscription {
 public:
  explicit LocalSubscription(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
  std::optional<ReqId> next() override { return pending_->next(); }
  uint64_t dropped() const override { return pending_->dropped(); }

 private:
  std::shared_ptr<Pending> pending_;
};

class ZmqPublisher final : public AbortPublisher {
 public:
  explicit ZmqPublisher(OpenedSocket opened)
      : socket_(std::move(opened.socket)), endpoint_(std::move(opened.endpoint)) {}

  void publish(ReqId id) override {
    const Result<std::string> frame = wire::encode(wire::AbortRequest{id});
    // An AbortRequest is one number and always within the limits.
    CHECK(frame.ok());
    std::lock_guard lock(mutex_);
    // PUB never waits for subscribers: at a subscriber's high-water mark it drops. So this fails only when the context
    // ends.
    if (zmq_send(socket_.get(), frame->data(), frame->size(), ZMQ_DONTWAIT) < 0) {
      LOG_WARNING("an abort hint was not published: {}", zmq_strerror(zmq_errno()));
    }
  }
  std::string endpoint() const override { return endpoint_; }

 private:
  std::mutex mutex_;
  Socket socket_;
  const std::string endpoint_;
};

// The context's service thread reads the socket; it owns it, and this object only requests its end.
class ZmqSubscription final : public AbortSubscription {
 public:
  ZmqSubscription(SocketService& service, uint64_t token, std::shared_ptr<Pending> pending)
      : service_(service), token_(token), pending_(std::move(pending)) {}
  // Waits until the callback is gone. Pending would live on without it, but its waker belongs to a stage that is going.
  ~ZmqSubscription() override { service_.remove_socket(token_); }
  std::optional<ReqId> next() override { return pending_->next(); }
  uint64_t dropped() const override { return pending_->dropped(); }

 private:
  SocketService& service_;
  const uint64_t token_;
  std::shared_ptr<Pending> pending_;
};

// Takes what is there, a bounded number at a time: other sockets want the thread too.
bool read_hints(void* socket, Pending& pending) {
  constexpr int kFramesATime = 256;
  zmq_msg_t frame;
  zmq_msg_init(&frame);
  for (int i = 0; i < kFramesATime && zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) >= 0; ++i) {
    if (zmq_msg_more(&frame) != 0) {
      while (zmq_msg_more(&frame) != 0 && zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) >= 0) continue;
      count(BadFrame::kMultipart, "wanted one part");
      continue;
    }
    const auto message = decode_frame({static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame)});
    // Counted by decode_frame(). A bad frame does not end the subscription.
    if (!message) continue;
    if (const auto* abort = std::get_if<wire::AbortRequest>(&*message)) {
      pending.add(abort->id);
    } else {
      count(BadFrame::kUnexpected, "wanted an AbortRequest on the abort bus");
    }
  }
  zmq_msg_close(&frame);
  return true;
}

SocketPlan plan_of(int type, const Endpoint& endpoint, const SharedKey* key) {
  SocketPlan plan;
  plan.type = type;
  plan.endpoint = endpoint;
  // linger_ms stays 0, unlike a mailbox's: hints that did not leave before the close are worth nothing.
  plan.max_frame_bytes = kMaxHintBytes;
  plan.send_high_water = plan.receive_high_water = static_cast<int>(kMaxPendingHints);
  plan.key = key;
  return plan;
}

}  // namespace

Result<std::unique_ptr<AbortPublisher>> bind_abort_publisher(ZmqContext& context, const std::string& endpoint,
                                                             const SharedKey* key) {
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint));
  SocketPlan plan = plan_of(ZMQ_PUB, where, key);
  plan.bind = true;
  ASSIGN_OR_RETURN(OpenedSocket opened, open_socket(context, plan));
  return std::unique_ptr<AbortPublisher>(std::make_unique<ZmqPublisher>(std::move(opened)));
}

Result<std::unique_ptr<AbortSubscription>> subscribe_aborts(ZmqContext& context, const std::string& endpoint,
                                                            std::shared_ptr<Waker> waker, const SharedKey* key) {
  ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint));
  SocketPlan plan = plan_of(ZMQ_SUB, where, key);
  ASSIGN_OR_RETURN(OpenedSocket opened, open_socket(context, plan));
  // After connect: the subscription is sent to the publisher when the connection is made, and hints before that are
  // missed.
  if (zmq_setsockopt(opened.socket.get(), ZMQ_SUBSCRIBE, "", 0) != 0) {
    return internal_error("cannot subscribe to {}: {}", opened.endpoint, zmq_strerror(zmq_errno()));
  }
  auto pending = std::make_shared<Pending>(std::move(waker));
  SocketService& service = context.service();
  // The service closes a socket as SocketClose does not: the monitor of this one ends with it.
  ASSIGN_OR_RETURN(const uint64_t token, service.add_socket(opened.socket.get(), [pending](void* socket) {
    return read_hints(socket, *pending);
  }));
  // Only after add_socket() took it: on its error the socket is still ours to close.
  [[maybe_unused]] void* const transferred = opened.socket.release();
  return std::unique_ptr<AbortSubscription>(std::make_unique<ZmqSubscription>(service, token, std::move(pending)));
}

struct LocalAbortBus::Subscribers {
  std::mutex mutex;
  // Weak: a subscription ends by being destroyed, and publish() clears away what is left of it.
  std::vector<std::weak_ptr<Pending>> list;
};

LocalAbortBus::LocalAbortBus() : subscribers_(std::make_unique<Subscribers>()) {}
LocalAbortBus::~LocalAbortBus() = default;

void LocalAbortBus::publish(ReqId id) {
  std::lock_guard lock(subscribers_->mutex);
  // Under the lock, so that all subscribers get hints in the same sequence. A waker must not call into the bus.
  std::erase_if(subscribers_->list, [id](const std::weak_ptr<Pending>& subscriber) {
    const auto alive = subscriber.lock();
    if (alive) alive->add(id);
    return !alive;
  });
}

std::unique_ptr<AbortSubscription> LocalAbortBus::subscribe(std::shared_ptr<Waker> waker) {
  auto pending = std::make_shared<Pending>(std::move(waker));
  std::lock_guard lock(subscribers_->mutex);
  subscribers_->list.push_back(pending);
  return std::make_unique<LocalSubscription>(std::move(pending));
}

}  // namespace millrace
