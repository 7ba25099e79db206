// Nested values through each relay of this machine and the simulated one: taken apart, put, got and put together again,
// bit for bit. Here because payload/ and relay/ know nothing of each other (src/LAYERS); what a relay alone must keep
// is in relay/testing/conformance.h.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "payload/packing.h"
#include "payload/testing/random_value.h"
#include "relay/registry.h"
#include "relay/testing/await.h"
#include "relay/testing/sim/sim_network.h"

namespace millrace {
namespace {

using relay_testing::AwaitGet;
using relay_testing::AwaitPut;

constexpr int kJourneys = 10'000;
constexpr std::size_t kAtOnce = 16;  // so that puts, gets and what readers hold overlap

struct RelayPair {
  std::unique_ptr<Relay> one, other;
  std::function<void()> step;  // lets time pass, where no thread of the relay's own does

  template <typename T>
  bool wait(const relay_testing::Await<T>& end) const {
    for (int i = 0; step && !end.ready() && i < 10'000; ++i) step();
    return end.wait_ready(step ? 0 : relay_testing::kPatienceMs);
  }
};

// A value on its way.
struct Journey {
  Value value;
  Lifted lifted;  // without its parts
  AwaitPut put;
  AwaitGet get;
};

// As stages do it: the tree and the list of tensors go with the control message, the bytes through the relay.
void depart(Relay& writer, Relay& reader, Journey& journey) {
  GetRequest get{.request = ReqId{1}, .done = journey.get.callback()};
  for (const SharedBytes& part : journey.lifted.parts) get.sizes.push_back(part.size_bytes());
  Result<PutTicket> ticket = writer.put({.parts = std::exchange(journey.lifted.parts, {}),
                                         .request = ReqId{1},
                                         .destination = reader.address(),
                                         .done = journey.put.callback()});
  ASSERT_TRUE(ticket.ok()) << ticket.status().to_string();
  get.descriptor = std::move(ticket->descriptor);
  const Result<RelayOp> op = reader.get(std::move(get));
  ASSERT_TRUE(op.ok()) << op.status().to_string();
}

// The value and the parts go at the end, so that the put may end.
void arrive(const RelayPair& pair, Journey& journey) {
  ASSERT_TRUE(pair.wait(journey.get));
  const auto parts = journey.get.wait();
  ASSERT_TRUE(parts->ok()) << parts->status().to_string();
  const Result<Value> back = restore(journey.lifted.tree, journey.lifted.tensors, **parts);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  ASSERT_TRUE(same_bits(*back, journey.value));
}

// The next value that has something for a relay; every fourth in one block.
void make(testing::RandomValues& random, bool packed, Journey& journey) {
  while (journey.lifted.parts.empty()) {
    journey.value = random.next();
    Result<Lifted> lifted = lift(journey.value);
    ASSERT_TRUE(lifted.ok()) << lifted.status().to_string();
    journey.lifted = packed ? pack(*std::move(lifted)) : *std::move(lifted);
  }
}

void expect_journeys(const RelayPair& pair) {
  testing::RandomValues random(4);
  std::size_t tensors = 0;
  for (int done = 0; done < kJourneys; done += static_cast<int>(kAtOnce)) {
    std::vector<Journey> journeys(kAtOnce);
    for (std::size_t i = 0; i < kAtOnce; ++i) {
      const bool forward = i % 2 == 0;
      ASSERT_NO_FATAL_FAILURE(make(random, i % 4 == 3, journeys[i]));
      tensors += journeys[i].lifted.tensors.size();
      ASSERT_NO_FATAL_FAILURE(
          depart(forward ? *pair.one : *pair.other, forward ? *pair.other : *pair.one, journeys[i]));
    }
    for (Journey& journey : journeys) ASSERT_NO_FATAL_FAILURE(arrive(pair, journey)) << "after " << done;
    for (Journey& journey : journeys) {
      ASSERT_TRUE(pair.wait(journey.put));
      ASSERT_TRUE(journey.put.wait()->ok());
    }
  }
  EXPECT_GT(tensors, 3u * kJourneys);  // the values are what the test is about
  EXPECT_EQ(pair.one->books().held_bytes + pair.other->books().held_bytes, 0u);
}

void expect_journeys_by(const char* name, const RelayOptions& options = {}) {
  Result<std::unique_ptr<Relay>> one = make_relay(name, options), other = make_relay(name, options);
  if (!one.ok()) GTEST_SKIP() << one.status().to_string();
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  expect_journeys({std::move(*one), std::move(*other)});
}

TEST(RelayValues, ByReference) { expect_journeys_by("local"); }
TEST(RelayValues, BySharedMemory) { expect_journeys_by("shm"); }
TEST(RelayValues, ByTcp) { expect_journeys_by("tcp"); }
TEST(RelayValues, ByUcxOverSharedMemory) { expect_journeys_by("ucx", {.listen = "ucx:posix,cma,tcp,self@lo"}); }
TEST(RelayValues, ByUcxOverTcp) { expect_journeys_by("ucx", {.listen = "ucx:tcp,self@lo"}); }

TEST(RelayValues, BySimulation) {
  SimNetwork network(1, {.max_delay_ms = 20, .duplicate = 0.05});
  Result<std::unique_ptr<Relay>> one = network.make_relay({}), other = network.make_relay({});
  ASSERT_TRUE(one.ok() && other.ok());
  expect_journeys({std::move(*one), std::move(*other), [&network] { network.advance(1); }});
}

}  // namespace
}  // namespace millrace
