// The abort bus: notifies every stage at once that a request was aborted, so that work on it stops early. A hint and no
// more: a subscriber that joins late, is slow or lost its connection misses hints without notice. The truth is the
// AbortRequest that each stage gets in its inbox and acknowledges.
//
// The publisher binds, stages subscribe (ZeroMQ PUB/SUB, one encoded AbortRequest a frame); LocalAbortBus does the same
// between threads. Hints come in the order in which they were published; an id may come more than once, also after its
// request has ended, so a reader must ignore unknown ids.
//
// Thread safety: publish() and next() from any thread; neither waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "control/mailbox.h"
#include "control/shared_key.h"
#include "control/zmq_context.h"

namespace millrace {

inline constexpr std::size_t kMaxPendingHints = 1024;  // unread ones of a subscriber; newer ones are dropped
inline constexpr int64_t kMaxHintBytes = 1024;         // of a frame; CURVE's own greetings take 300

class AbortPublisher {
 public:
  virtual ~AbortPublisher() = default;
  virtual void publish(ReqId id) = 0;
  // Where to subscribe, with the real port; empty: of threads of this process alone.
  virtual std::string endpoint() const { return {}; }
};

class AbortSubscription {
 public:
  virtual ~AbortSubscription() = default;
  virtual std::optional<ReqId> next() = 0;
  // So many hints were dropped because the subscriber did not read them.
  virtual uint64_t dropped() const = 0;
};

// `waker`, where there is one, is woken for each hint that is ready for next().
Result<std::unique_ptr<AbortPublisher>> bind_abort_publisher(ZmqContext& context, const std::string& endpoint,
                                                             const SharedKey* key = nullptr);
Result<std::unique_ptr<AbortSubscription>> subscribe_aborts(ZmqContext& context, const std::string& endpoint,
                                                            std::shared_ptr<Waker> waker = nullptr,
                                                            const SharedKey* key = nullptr);

// Between threads of one process. Subscriptions may outlive it.
class LocalAbortBus final : public AbortPublisher {
 public:
  LocalAbortBus();
  ~LocalAbortBus() override;
  void publish(ReqId id) override;
  std::unique_ptr<AbortSubscription> subscribe(std::shared_ptr<Waker> waker = nullptr);

 private:
  struct Subscribers;
  std::unique_ptr<Subscribers> subscribers_;
};

}  // namespace millrace
