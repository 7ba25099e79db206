// SimNetwork: a data plane in memory with its own clock and its own accidents, all from one seed. For tests of whatever
// sits on relays: a whole cluster in one thread, the same in every run of a seed.
//
//      SimNetwork network(seed, {.max_delay_ms = 20, .loss = 0.05, .duplicate = 0.05});
//      auto a = network.make_relay(options), b = network.make_relay(options);       // one for each node
//      ... a->put(), b->get() ...
//      network.advance(100);       // 100 ms pass: messages arrive, deadlines run out, `done` is called
//      network.kill(a->address());
//
// What travels: a get is a message to the writer, which answers with the bytes or a refusal, and the reader releases
// with a third. Each may be delayed (so they overtake each other), lost, doubled or damaged. A get or its answer that
// is lost is not sent again: the get ends at its deadline. A release is sent again until it arrives, so only death or
// a partition keeps bytes from coming back. Damaged bytes are found by their checksum and end the get with kInternal.
//
// A killed or paused node is silent; after silent_ms the others take it for dead: gets from it end with kUnavailable
// and what it read is released. A killed node stays dead, a paused one carries on and finds its deadlines over.
//
// Thread safety: none. One thread owns the network, its relays and all parts that were received from them. `done` comes
// from advance(), cancel(), cleanup() or close(), never from put() or get(). The network outlives its relays, not
// necessarily received parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "relay/relay.h"

namespace millrace {

struct SimFaults {
  int min_delay_ms = 0;  // of a message
  int max_delay_ms = 5;
  double loss = 0;  // probabilities, of each message
  double duplicate = 0;
  double corrupt = 0;    // of the bytes, or of the message
  double exhausted = 0;  // of a put: kResourceExhausted, whatever is free
  bool mapped = true;    // a reader holds the writer's credit until it releases; else what it gets is a copy
};

class SimNetwork {
 public:
  explicit SimNetwork(uint64_t seed, SimFaults faults = {});
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // An instance on a node of its own.
  Result<std::unique_ptr<Relay>> make_relay(const RelayOptions& options);

  int64_t now_ms() const;
  // Lets so much time pass, event by event.
  void advance(int64_t ms);
  // In how many ms something happens next; -1: nothing is going to.
  int64_t next_event_ms() const;
  void set_faults(const SimFaults& faults);

  // By Relay::address(). Of a killed node's relay nothing comes any more; its puts and gets return kUnavailable, and
  // close() still ends what was open, for the cleanup after a test.
  void kill(const std::string& address);
  void pause(const std::string& address);
  void carry_on(const std::string& address);
  // Nothing passes between the two, in either direction, until it is healed.
  void cut(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);

  // A hash of everything that happened: equal for equal seeds and calls.
  uint64_t trace() const;

  struct Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace millrace
