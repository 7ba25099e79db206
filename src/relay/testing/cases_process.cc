// Cases with the other side in a process of its own, which is killed or frozen at every point of a transfer.
#include <chrono>
#include <thread>

#include "relay/testing/fixture.h"
#include "relay/testing/peer.h"

namespace millrace::relay_testing {
namespace {

constexpr int kKills = 6;  // at points spread over a transfer

// This process's relay and the child's.
struct Distance {
  std::unique_ptr<Relay> relay;
  std::unique_ptr<Peer> peer;
  RelayOptions options;
};

RelayOptions process_options(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.lease_ms = 20'000;
  options.silent_ms = 10'000;
  options.connect_timeout_ms = 10'000;
  return options;
}

// "" where the case applies.
std::string reason_against(const Relay& relay) {
  const RelayCapabilities caps = relay.capabilities();
  return caps.same_host || caps.across_hosts ? "" : "this relay stays in its process";
}

#define START_DISTANCE(name, setup, wanted_options)                                                    \
  Distance name;                                                                                       \
  name.options = wanted_options;                                                                       \
  name.relay = make_relay_of(setup, name.options);                                                     \
  ASSERT_TRUE(name.relay);                                                                             \
  if (const std::string reason = reason_against(*name.relay); !reason.empty()) GTEST_SKIP() << reason; \
  name.peer = Peer::start(setup, name.options);                                                        \
  ASSERT_TRUE(name.peer)

std::string get_command(const std::string& descriptor, uint64_t seed, const Sizes& sizes) {
  return fmt::format("get {} {} {} {}", hex(descriptor), seed, join(sizes), kPatienceMs);
}
std::string get_command(const Sent& sent) { return get_command(sent.ticket->descriptor, sent.seed, sent.sizes); }

// A put of the peer's: its descriptor, or a failure.
void put_by_peer(Peer& peer, uint64_t seed, const Sizes& sizes, std::string& descriptor) {
  const std::string answer = peer.ask(fmt::format("put {} {}", seed, join(sizes)));
  ASSERT_TRUE(answer.starts_with("ok ")) << answer;
  descriptor = unhex(answer.substr(3));
}

const std::vector<StatusCode>& dead_codes() {
  static const std::vector<StatusCode> codes = {StatusCode::kUnavailable, StatusCode::kDeadline};
  return codes;
}

void to_and_from_another_process(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Sizes sizes = random_sizes(seed, 20, seed % 10 == 0 ? 2 * kMib : 20 * kKib);
    Sent sent = send(*d.relay, seed, sizes);
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    ASSERT_EQ(d.peer->ask(get_command(sent)), "ok");
    ASSERT_EQ(d.peer->ask("drop"), "ok");
    expect_put_end(sent, {StatusCode::kOk});
    std::string descriptor;
    ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, seed, sizes, descriptor));
    {
      const Result<Parts> parts = receive(*d.relay, descriptor, sizes).outcome();
      ASSERT_TRUE(parts.ok()) << parts.status().to_string();
      ASSERT_EQ(differs(seed, sizes, *parts), "");
    }
    ASSERT_EQ(d.peer->ask("put_end"), "ok");
  }
  expect_quiet(*d.relay);
  EXPECT_EQ(d.peer->ask("books"), "quiet");
}

void an_address_of_another_process(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  const std::string address = d.peer->ask("address");
  ASSERT_TRUE(address.starts_with("ok "));
  Sent sent = send(*d.relay, 1, {1000}, {.destination = unhex(address.substr(3))});
  ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
  ASSERT_EQ(d.peer->ask(get_command(sent)), "ok");
  ASSERT_EQ(d.peer->ask("drop"), "ok");
  expect_put_end(sent, {StatusCode::kOk});
}

void receiver_killed_before_get(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  // It was known: one transfer has passed between them.
  Sent first = send(*d.relay, 1, {1000});
  ASSERT_TRUE(first.ticket.ok());
  ASSERT_EQ(d.peer->ask(get_command(first)), "ok");
  ASSERT_EQ(d.peer->ask("drop"), "ok");
  expect_put_end(first, {StatusCode::kOk});
  Sent sent = send(*d.relay, 2, {kMib});
  ASSERT_TRUE(sent.ticket.ok());
  d.peer->kill();
  expect_put_end(sent, dead_codes());
  expect_quiet(*d.relay);
}

void receiver_killed_during_get(const ConformanceSetup& setup) {
  RelayOptions options = process_options(setup);
  options.lease_ms = 3'000;
  for (int kill = 0; kill < kKills; ++kill) {
    START_DISTANCE(d, setup, options);
    ASSERT_TRUE(d.peer->ask("address").starts_with("ok "));  // it is up
    Sent sent = send(*d.relay, 3, {20 * kMib, 10 * kMib});
    ASSERT_TRUE(sent.ticket.ok());
    d.peer->send_command(get_command(sent));
    std::this_thread::sleep_for(std::chrono::microseconds(kill * kill * 300));
    d.peer->kill();
    expect_put_end(sent, {StatusCode::kUnavailable, StatusCode::kDeadline, StatusCode::kOk});
    expect_quiet(*d.relay);
    // The relay serves others.
    if (setup.only_between_processes) {
      const std::unique_ptr<Peer> other = Peer::start(setup, options);
      ASSERT_TRUE(other);
      Sent next = send(*d.relay, 4, {kMib});
      ASSERT_EQ(other->ask(get_command(next)), "ok");
      ASSERT_EQ(other->ask("drop"), "ok");
      expect_put_end(next, {StatusCode::kOk});
    } else {
      std::unique_ptr<Relay> other = make_relay_of(setup, options);
      ASSERT_TRUE(other);
      expect_round_trip(*d.relay, *other, 4, {kMib});
    }
  }
}

void receiver_killed_after_get(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  Sent held = send(*d.relay, 5, {kMib}), free = send(*d.relay, 6, {kMib});
  ASSERT_TRUE(held.ticket.ok() && free.ticket.ok());
  ASSERT_EQ(d.peer->ask(get_command(free)), "ok");
  ASSERT_EQ(d.peer->ask("drop"), "ok");
  expect_put_end(free, {StatusCode::kOk});
  ASSERT_EQ(d.peer->ask(get_command(held)), "ok");
  d.peer->kill();  // and it holds the bytes
  expect_put_end(held, {StatusCode::kUnavailable, StatusCode::kDeadline, StatusCode::kOk});
  expect_quiet(*d.relay);
  for (uint64_t i = 0; i < 20; ++i) {
    Sent sent = send(*d.relay, i, {3 * kMib});
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    d.relay->cancel(sent.ticket->op);
    expect_put_end(sent, {StatusCode::kCancelled});
  }
}

void sender_killed_before_get(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  const Sizes sizes = {kMib, 7};
  std::string first, second;
  ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 7, sizes, first));
  {
    const Result<Parts> parts = receive(*d.relay, first, sizes).outcome();
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  }
  ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 8, sizes, second));
  d.peer->kill();
  const Result<Parts> parts = receive(*d.relay, second, sizes).outcome();
  if (parts.ok()) {
    EXPECT_EQ(differs(8, sizes, *parts), "");  // it had been mapped already
  } else {
    EXPECT_NE(parts.status().message(), "never: the get did not end");
    EXPECT_TRUE(parts.status().code() == StatusCode::kUnavailable || parts.status().code() == StatusCode::kDeadline)
        << parts.status().to_string();
  }
}

void sender_killed_during_get(const ConformanceSetup& setup) {
  for (int kill = 0; kill < kKills; ++kill) {
    START_DISTANCE(d, setup, process_options(setup));
    const Sizes sizes = {20 * kMib, 10 * kMib};
    std::string descriptor;
    ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 9, sizes, descriptor));
    Received received = receive(*d.relay, descriptor, sizes);
    std::this_thread::sleep_for(std::chrono::microseconds(kill * kill * 300));
    d.peer->kill();
    {
      const Result<Parts> parts = received.outcome();
      if (parts.ok()) {
        EXPECT_EQ(differs(9, sizes, *parts), "");  // also with the sender gone
      } else {
        EXPECT_TRUE(parts.status().code() == StatusCode::kUnavailable || parts.status().code() == StatusCode::kDeadline)
            << parts.status().to_string();
      }
    }
    expect_quiet(*d.relay);
  }
}

void sender_killed_after_get(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  const Sizes sizes = {kMib, 3};
  std::string descriptor;
  ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 10, sizes, descriptor));
  Result<Parts> parts = receive(*d.relay, descriptor, sizes).outcome();
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  d.peer->kill();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(differs(10, sizes, *parts), "");
  parts = Status(StatusCode::kCancelled, "dropped");
  expect_quiet(*d.relay);
}

void frozen_sender(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  const Sizes sizes = {3 * kMib};
  std::string descriptor;
  ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 11, sizes, descriptor));
  d.peer->freeze();
  {
    const Result<Parts> parts = receive(*d.relay, descriptor, sizes, 1'000).outcome();
    if (parts.ok()) {
      EXPECT_EQ(differs(11, sizes, *parts), "");
    } else {
      EXPECT_TRUE(parts.status().code() == StatusCode::kUnavailable || parts.status().code() == StatusCode::kDeadline)
          << parts.status().to_string();
    }
  }
  d.peer->carry_on();
  expect_quiet(*d.relay);
}

void frozen_receiver_keeps_its_bytes(const ConformanceSetup& setup) {
  RelayOptions options = process_options(setup);
  options.lease_ms = 500;
  options.pool_bytes = 4 * kMib;
  options.credits = 4;
  START_DISTANCE(d, setup, options);
  ASSERT_TRUE(d.peer->ask("address").starts_with("ok "));
  Sent sent = send(*d.relay, 12, {kMib});
  ASSERT_TRUE(sent.ticket.ok());
  const std::string got = d.peer->ask(get_command(sent));
  if (got != "ok") GTEST_SKIP() << "the machine is too slow for a lease of 500 ms: " << got;
  d.peer->freeze();
  expect_put_end(sent, {StatusCode::kOk, StatusCode::kDeadline, StatusCode::kUnavailable});
  for (uint64_t i = 0; i < 20; ++i) {
    Sent other = send(*d.relay, 100 + i, {kMib / 2, kMib / 2});
    if (!other.ticket.ok()) continue;  // the pool is small, and a part of it may be held
    d.relay->cancel(other.ticket->op);
    expect_put_end(other, {StatusCode::kCancelled, StatusCode::kDeadline});
  }
  d.peer->carry_on();
  EXPECT_EQ(d.peer->ask("check"), "ok");
  EXPECT_EQ(d.peer->ask("drop"), "ok");
  expect_quiet(*d.relay);
}

void closed_with_a_frozen_peer(const ConformanceSetup& setup) {
  START_DISTANCE(d, setup, process_options(setup));
  Sent sent = send(*d.relay, 13, {kMib});
  ASSERT_TRUE(sent.ticket.ok());
  ASSERT_EQ(d.peer->ask(get_command(sent)), "ok");
  std::string descriptor;
  ASSERT_NO_FATAL_FAILURE(put_by_peer(*d.peer, 14, {kMib}, descriptor));
  d.peer->freeze();
  Received received = receive(*d.relay, descriptor, {kMib});
  const auto begin = std::chrono::steady_clock::now();
  d.relay->close();
  // Bounded, whatever the peer does: far more than the limit of the contract, for a loaded machine.
  static_assert(kRelayCloseMs < kPatienceMs / 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2 * kPatienceMs));
  EXPECT_EQ(sent.end.count(), 1);
  EXPECT_EQ(received.end.count(), received.op.ok() ? 1 : 0);
}

}  // namespace

std::vector<Case> process_cases() {
  return {{"to_and_from_another_process", to_and_from_another_process},
          {"an_address_of_another_process", an_address_of_another_process},
          {"receiver_killed_before_get", receiver_killed_before_get},
          {"receiver_killed_during_get", receiver_killed_during_get},
          {"receiver_killed_after_get", receiver_killed_after_get},
          {"sender_killed_before_get", sender_killed_before_get},
          {"sender_killed_during_get", sender_killed_during_get},
          {"sender_killed_after_get", sender_killed_after_get},
          {"frozen_sender", frozen_sender},
          {"frozen_receiver_keeps_its_bytes", frozen_receiver_keeps_its_bytes},
          {"closed_with_a_frozen_peer", closed_with_a_frozen_peer}};
}

}  // namespace millrace::relay_testing
