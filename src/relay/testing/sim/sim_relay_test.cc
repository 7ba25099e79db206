// The simulated relay: the conformance suite under a pump of real time, and what is its own: the same run for the same
// seed, and every accident ending as it should.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "base/rng.h"
#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"
#include "relay/testing/sim/sim_network.h"

namespace millrace {
namespace {

using relay_testing::AwaitPut;
using relay_testing::Parts;
using relay_testing::receive;
using relay_testing::Received;
using relay_testing::send;
using relay_testing::Sent;

// ---- for the suite: many threads, and time that passes by itself

// A network with a lock around it and a thread that lets its time pass.
struct Pumped {
  explicit Pumped(SimFaults faults) : network(1, faults), pump([this] { run(); }) {}
  ~Pumped() {
    stop = true;
    pump.join();
  }
  void run() {
    while (!stop) {
      {
        std::lock_guard lock(mutex);
        network.advance(1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  std::recursive_mutex mutex;
  SimNetwork network;
  std::atomic<bool> stop{false};
  std::thread pump;
};

class PumpedRelay final : public Relay {
  template <typename F>
  auto locked(F&& f) const {
    std::lock_guard lock(pumped_->mutex);
    return f();
  }

 public:
  PumpedRelay(std::shared_ptr<Pumped> pumped, std::unique_ptr<Relay> relay)
      : pumped_(std::move(pumped)), relay_(std::move(relay)) {}
  ~PumpedRelay() override {
    std::lock_guard lock(pumped_->mutex);
    relay_.reset();
  }
  RelayCapabilities capabilities() const override {
    return locked([&] { return relay_->capabilities(); });
  }
  std::string address() const override { return relay_->address(); }
  Result<PutTicket> put(PutRequest request) override {
    return locked([&] { return relay_->put(std::move(request)); });
  }
  Result<RelayOp> get(GetRequest request) override {
    request.done = [pumped = pumped_, done = std::move(request.done)](Result<Parts> parts) {
      if (!parts.ok()) return done(parts.status());
      for (SharedBytes& part : *parts) {
        if (!part.owner()) continue;
        // A release is a message, so it wants the lock as well.
        const std::shared_ptr<const void> owner(new std::shared_ptr<const void>(part.owner()),
                                                [pumped](const std::shared_ptr<const void>* inner) {
                                                  std::lock_guard lock(pumped->mutex);
                                                  delete inner;
                                                });
        part = SharedBytes(owner, part.data(), part.size_bytes());
      }
      done(std::move(parts));
    };
    return locked([&] { return relay_->get(std::move(request)); });
  }
  void cancel(RelayOp op) override {
    locked([&] { return relay_->cancel(op), 0; });
  }
  void cleanup(ReqId request) override {
    locked([&] { return relay_->cleanup(request), 0; });
  }
  RelayBooks books() const override {
    return locked([&] { return relay_->books(); });
  }
  void close() override {
    locked([&] { return relay_->close(), 0; });
  }

 private:
  const std::shared_ptr<Pumped> pumped_;
  std::unique_ptr<Relay> relay_;
};

relay_testing::ConformanceSetup pumped_setup(std::string name, SimFaults faults) {
  auto pumped = std::make_shared<std::shared_ptr<Pumped>>();
  return {.name = std::move(name),
          .make = [pumped, faults](const RelayOptions& options) -> Result<std::unique_ptr<Relay>> {
            if (!*pumped) *pumped = std::make_shared<Pumped>(faults);
            std::lock_guard lock((*pumped)->mutex);
            auto relay = (*pumped)->network.make_relay(options);
            if (!relay.ok()) return relay.status();
            return std::unique_ptr<Relay>(std::make_unique<PumpedRelay>(*pumped, std::move(*relay)));
          }};
}

// ---- its own

RelayOptions options() {
  RelayOptions o;
  o.credits = 4;
  o.pool_bytes = 1 << 20;
  o.lease_ms = 1000;
  o.silent_ms = 200;
  return o;
}

struct Two {
  explicit Two(SimFaults faults, uint64_t seed = 1) : network(seed, faults) {
    writer = std::move(network.make_relay(options())).value();
    reader = std::move(network.make_relay(options())).value();
  }
  SimNetwork network;
  std::unique_ptr<Relay> writer, reader;
};

StatusCode end_of(Received& received) {
  const auto end = received.end.wait(0);
  return end ? end->status().code() : StatusCode::kNotFound;
}
StatusCode end_of(Sent& sent) {
  const auto end = sent.end.wait(0);
  return end ? end->code() : StatusCode::kNotFound;
}

TEST(SimRelay, NothingHappensUntilTimePasses) {
  Two two({.min_delay_ms = 3, .max_delay_ms = 3});
  Sent sent = send(*two.writer, 1, {100});
  Received received = receive(*two.reader, sent, 500);
  EXPECT_EQ(received.end.count(), 0);
  two.network.advance(5);  // there, and half the way back
  EXPECT_EQ(received.end.count(), 0);
  two.network.advance(1);
  EXPECT_EQ(end_of(received), StatusCode::kOk);
  two.network.advance(2);
  EXPECT_EQ(sent.end.count(), 0);
  two.network.advance(1);
  EXPECT_EQ(end_of(sent), StatusCode::kOk);
  EXPECT_EQ(two.network.now_ms(), 9);
}

TEST(SimRelay, LossEndsTheGetAtItsDeadlineAndGivesTheCreditBack) {
  Two two({.loss = 1.0});
  Sent sent = send(*two.writer, 1, {100});
  Received received = receive(*two.reader, sent, 500);
  two.network.advance(499);
  EXPECT_EQ(received.end.count(), 0);
  two.network.advance(1);
  EXPECT_EQ(end_of(received), StatusCode::kDeadline);
  two.network.set_faults({});
  two.network.advance(100);  // a release is sent again until it arrives
  EXPECT_EQ(end_of(sent), StatusCode::kOk);
  EXPECT_EQ(two.writer->books().held_bytes, 0u);
}

TEST(SimRelay, DamagedBytesAreNeverHandedOut) {
  int damaged = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Two two({.corrupt = 0.3}, seed);
    Sent sent = send(*two.writer, seed, {100, 0, 7});
    Received received = receive(*two.reader, sent, 500);
    two.network.advance(600);
    auto end = received.end.wait(0);
    ASSERT_TRUE(end.has_value());
    if (end->ok()) {
      EXPECT_EQ(relay_testing::differs(seed, sent.sizes, **end), "");
    } else if (end->status().code() == StatusCode::kInternal) {
      ++damaged;
    } else {
      EXPECT_EQ(end->status().code(), StatusCode::kDeadline);  // the question was damaged
    }
    end.reset();
    two.network.advance(2000);
    EXPECT_EQ(sent.end.count(), 1);
    EXPECT_EQ(two.writer->books().held_bytes, 0u);
  }
  EXPECT_GT(damaged, 20);
}

TEST(SimRelay, AKilledReaderReleasesWhatItHeld) {
  Two two({});
  Sent sent = send(*two.writer, 1, {1000});
  Received received = receive(*two.reader, sent, 500);
  two.network.advance(50);
  auto parts = received.end.wait(0);
  ASSERT_TRUE(parts && parts->ok());
  two.network.kill(two.reader->address());
  two.network.advance(199);
  EXPECT_EQ(sent.end.count(), 0);
  two.network.advance(2);
  EXPECT_EQ(end_of(sent), StatusCode::kUnavailable);
  EXPECT_EQ(two.writer->books().held_bytes, 0u);
  EXPECT_EQ(relay_testing::differs(1, sent.sizes, **parts), "");
}

TEST(SimRelay, AKilledWriterEndsTheGetsFromIt) {
  Two two({.min_delay_ms = 10, .max_delay_ms = 10});
  Sent sent = send(*two.writer, 1, {1000});
  Received under_way = receive(*two.reader, sent, 5000);
  two.network.kill(two.writer->address());
  two.network.advance(1000);
  EXPECT_EQ(end_of(under_way), StatusCode::kUnavailable);
  Received late = receive(*two.reader, sent, 5000);
  two.network.advance(1000);
  EXPECT_EQ(end_of(late), StatusCode::kUnavailable);
  EXPECT_EQ(send(*two.writer, 2, {1}).ticket.status().code(), StatusCode::kUnavailable);
}

TEST(SimRelay, AShortPauseChangesNothingALongOneIsDeath) {
  for (const int pause_ms : {100, 400}) {
    Two two({});
    Sent sent = send(*two.writer, 1, {1000});
    two.network.pause(two.writer->address());
    Received received = receive(*two.reader, sent, 5000);
    two.network.advance(pause_ms);
    two.network.carry_on(two.writer->address());
    two.network.advance(100);
    EXPECT_EQ(end_of(received), pause_ms < 200 ? StatusCode::kOk : StatusCode::kUnavailable) << pause_ms;
    two.network.advance(2000);
    EXPECT_EQ(sent.end.count(), 1);
    EXPECT_EQ(two.writer->books().held_bytes, 0u);
  }
}

// Where a doubled question comes after the end of its put, the bytes that answered the first one may still be on their
// way: the reader releases them, as if there were no second one.
TEST(SimRelay, ADoubledQuestionAfterTheEndLosesNoRelease) {
  for (const bool closes : {false, true}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Two two({.max_delay_ms = 20, .duplicate = 1.0, .mapped = seed % 2 == 0}, seed);
      Sent sent = send(*two.writer, seed, {1000});
      Received received = receive(*two.reader, sent, 500);
      two.network.advance(static_cast<int64_t>(seed % 40));
      closes ? two.writer->close() : two.writer->cancel(sent.ticket->op);
      two.network.advance(600);
      EXPECT_EQ(received.end.count(), 1) << "seed " << seed;
      (void)end_of(received);  // releases the parts, where it got them
      two.network.advance(200);
      EXPECT_EQ(sent.end.count(), 1) << "seed " << seed;
      ASSERT_EQ(two.writer->books().held_bytes, 0u) << "seed " << seed << (closes ? ", closed" : ", cancelled");
    }
  }
}

TEST(SimRelay, APartitionEndsByDeadlineAndHeals) {
  Two two({});
  two.network.cut(two.writer->address(), two.reader->address());
  Sent sent = send(*two.writer, 1, {1000});
  Received received = receive(*two.reader, sent, 300);
  two.network.advance(301);
  EXPECT_EQ(end_of(received), StatusCode::kDeadline);
  two.network.heal(two.writer->address(), two.reader->address());
  Sent second = send(*two.writer, 2, {10});
  Received again = receive(*two.reader, second, 300);
  two.network.advance(50);
  EXPECT_EQ(end_of(again), StatusCode::kOk);
}

// A small cluster with everything going wrong: four nodes, many transfers, kills and pauses. All of it follows from the
// seed, every op ends once, and everything comes back.
struct Story {
  uint64_t trace = 0;
  int ok = 0, failed = 0;
};

Story run_story(uint64_t seed) {
  SimNetwork network(seed, {.max_delay_ms = 30,
                            .loss = 0.05,
                            .duplicate = 0.1,
                            .corrupt = 0.05,
                            .exhausted = 0.02,
                            .mapped = seed % 2 == 0});
  std::vector<std::unique_ptr<Relay>> nodes;
  for (int i = 0; i < 4; ++i) nodes.push_back(std::move(network.make_relay(options())).value());
  std::vector<Sent> puts;
  std::vector<Received> gets;
  std::vector<Parts> kept;
  Story story;
  std::size_t dead = nodes.size();
  for (uint64_t step = 0; step < 120; ++step) {
    const PhiloxBlock d = philox(seed, step, 9);
    Relay& writer = *nodes[d[0] % 4];
    Relay& reader = *nodes[d[1] % 4];
    Sent sent = send(writer, step, {d[2] % 3000, d[3] % 7}, {.request = ReqId{step}});
    if (sent.ticket.ok()) {
      gets.push_back(receive(reader, sent, 400));
      if (d[2] % 11 == 0) writer.cleanup(ReqId{step});
      if (d[2] % 13 == 0 && gets.back().op.ok()) reader.cancel(*gets.back().op);
      puts.push_back(std::move(sent));
    }
    if (step == 60) network.pause(nodes[1]->address());
    if (step == 60 + seed % 30) network.carry_on(nodes[1]->address());
    if (step == 80 && seed % 3 == 0) network.kill(nodes[dead = 2]->address());
    network.advance(d[3] % 40);
  }
  network.carry_on(nodes[1]->address());
  network.advance(3000);
  if (dead < nodes.size()) nodes[dead]->close();  // of a dead node nothing comes by itself
  for (Received& get : gets) {
    if (!get.op.ok()) continue;
    EXPECT_EQ(get.end.count(), 1) << "seed " << seed;
    auto end = get.end.wait(0);
    if (end && end->ok()) kept.push_back(std::move(**end));
    ++(end && end->ok() ? story.ok : story.failed);
  }
  kept.clear();
  network.advance(3000);
  for (Sent& put : puts) EXPECT_EQ(put.end.count(), 1) << "seed " << seed;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const RelayBooks b = nodes[i]->books();
    EXPECT_EQ(b.puts + b.gets + b.lent_parts, 0) << "seed " << seed << ", node " << i;
    EXPECT_EQ(i == dead ? 0u : b.held_bytes, 0u) << "seed " << seed << ", node " << i;
  }
  story.trace = network.trace();
  return story;
}

TEST(SimRelay, AThousandSeedsEndWithEverythingBack) {
  Story all;
  for (uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    const Story story = run_story(seed);
    all.ok += story.ok;
    all.failed += story.failed;
  }
  EXPECT_GT(all.ok, 10'000);
  EXPECT_GT(all.failed, 1'000);
}

TEST(SimRelay, ASeedGivesTheSameStoryTwice) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(run_story(seed).trace, run_story(seed).trace) << "seed " << seed;
  EXPECT_NE(run_story(1).trace, run_story(3).trace);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::relay_testing::conformance_main(
      argc, argv,
      {millrace::pumped_setup("sim_mapped", {.max_delay_ms = 0}),
       millrace::pumped_setup("sim_copying", {.max_delay_ms = 2, .duplicate = 0.3, .mapped = false})});
}
