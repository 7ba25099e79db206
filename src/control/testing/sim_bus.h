// SimBus: the control plane of a simulated cluster, in memory and in virtual time. Named inboxes, outboxes from one
// name to another, links that are slow, lose, repeat and reorder, partitions, and nodes that are paused, killed and
// born anew. The caller moves the clock; nothing happens by itself.
//
// Deterministic: a message's fate is a function of the seed, its link's two names and its number on that link, and what
// is due at one moment comes in the order in which it was sent. The same calls give the same run, on every machine.
//
// As on the real plane: a link keeps its order (but for what it reorders), send() returns OK before the receiver has
// the message, a full receiver is kResourceExhausted, and a dead or unreachable one is kUnavailable as soon as it is
// noticed and loses what was sent before.
//
// Thread safety: one thread, for the bus and all its inboxes and outboxes; these may outlive the bus.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "control/mailbox.h"

namespace millrace {

struct SimLink {
  int64_t min_delay_ms = 0;  // each message takes min..max, evenly
  int64_t max_delay_ms = 0;
  double drop = 0;       // probabilities of each message
  double duplicate = 0;  // it comes a second time, with a delay of its own
  double reorder = 0;    // it takes 1..reorder_ms longer, and others may overtake it
  int64_t reorder_ms = 50;
};

struct SimOptions {
  uint64_t seed = 0;
  std::size_t capacity = static_cast<std::size_t>(kMailboxCapacity);  // messages queued for and on their way to a node
  int64_t notice_ms = 0;      // so long after a death or a partition send() still returns OK, and the message is lost
  bool through_codec = true;  // messages are encoded and decoded, as between processes
};

// Of the whole bus. At every moment: sent + duplicated = received + dropped + lost_partition + lost_dead + in_flight +
// queued.
struct SimCounters {
  uint64_t sent = 0;     // send() returned OK
  uint64_t refused = 0;  // send() did not
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t dropped = 0;
  uint64_t lost_partition = 0;
  uint64_t lost_dead = 0;  // for an incarnation that was killed
  uint64_t received = 0;   // came out of receive()
  uint64_t in_flight = 0;
  uint64_t queued = 0;  // arrived and not received
};

class SimBus {
 public:
  explicit SimBus(const SimOptions& options);
  ~SimBus();
  SimBus(const SimBus&) = delete;
  SimBus& operator=(const SimBus&) = delete;

  // A node is born under this name; kConflict while one lives there. The inbox's end is the node's end, as kill().
  // receive() never waits: its timeout means nothing here.
  Result<std::unique_ptr<Inbox>> inbox(const std::string& name);
  // From the incarnation of `from` that lives now (or from a sender without an inbox, which never dies).
  std::shared_ptr<Outbox> outbox(const std::string& from, const std::string& to);

  void set_default_link(const SimLink& link);  // of links that have none of their own
  void set_link(const std::string& from, const std::string& to, const SimLink& link);

  // One direction: what is sent, and what is on its way and would arrive meanwhile, is lost.
  void cut(const std::string& from, const std::string& to);
  void heal(const std::string& from, const std::string& to);
  void partition(const std::string& a, const std::string& b) { cut(a, b), cut(b, a); }
  void heal_both(const std::string& a, const std::string& b) { heal(a, b), heal(b, a); }

  // A paused node receives nothing; what comes is held. (That it does nothing else is its driver's care.)
  void pause(const std::string& name);
  void resume(const std::string& name);
  // Its queue is lost, what is on its way to it will be, and its inbox and outboxes are dead for good; what it has sent
  // still travels.
  void kill(const std::string& name);
  bool alive(const std::string& name) const;

  // Moves the clock and delivers everything that is due by then; 0 delivers what is due now. ms >= 0.
  void advance(int64_t ms);
  int64_t now_ms() const;
  // When the next message will arrive: for drivers that jump from event to event.
  std::optional<int64_t> next_arrival_ms() const;
  // Was the node's waker woken since the last time it was asked?
  bool take_wake(const std::string& name);
  SimCounters counters() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace millrace
