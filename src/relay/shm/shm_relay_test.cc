// The shared-memory relay: the conformance suite, and what is its own: nothing is left in the system, deaths are
// noticed at once and not by a lease, and running out of descriptors is an answer.
#include "relay/shm/shm_relay.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"
#include "relay/testing/peer.h"

namespace millrace {
namespace {

using relay_testing::eventually;
using relay_testing::expect_put_end;
using relay_testing::kMib;
using relay_testing::Parts;
using relay_testing::Peer;
using relay_testing::Sent;

std::size_t open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::size_t threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

std::size_t mappings_of(std::string_view what) {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(what) != std::string::npos;
  return count;
}
std::size_t mappings() { return mappings_of("memfd:millrace"); }

// What this process has open or mapped of a kind, by the names that the kernel gives it.
std::string open_or_mapped(std::string_view what) {
  std::string found;
  if (const std::size_t count = mappings_of(what)) found += fmt::format("{} mappings of {}; ", count, what);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.find(what) != std::string::npos) found += target + "; ";
  }
  return found;
}

// Looked for in our own tables and not in the folder, which other programs use as well.
std::string named_segments() { return open_or_mapped("/dev/shm"); }
std::string left_over() { return open_or_mapped("memfd:millrace") + named_segments(); }

relay_testing::ConformanceSetup setup() {
  return {.name = "shm",
          .make = [](const RelayOptions& options) { return make_shm_relay(options); },
          .left_over = left_over};
}

RelayOptions tolerant_options() {
  RelayOptions options = relay_testing::small_options(setup());
  options.lease_ms = 600'000;  // nothing below ends by it
  return options;
}

TEST(ShmRelay, LeavesNothingInTheSystem) {
  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first one
  const std::size_t fds = open_fds(), maps = mappings(), running = threads();
  for (int round = 0; round < 5; ++round) {
    relay_testing::Pair pair = relay_testing::make_pair_of(setup(), tolerant_options());
    relay_testing::expect_round_trip(*pair.writer, *pair.reader, 1, {kMib, 5});
    relay_testing::expect_round_trip(*pair.reader, *pair.writer, 2, {10});
    EXPECT_LE(threads(), running + 2) << "one for each relay";
    Sent open = relay_testing::send(*pair.writer, 3, {100}), held = relay_testing::send(*pair.writer, 4, {kMib});
    Parts parts;
    ASSERT_NO_FATAL_FAILURE(relay_testing::expect_received(*pair.reader, held, &parts));
    EXPECT_EQ(named_segments(), "") << "not even while it is in use";
    pair.writer->close();
    pair.reader->close();
    EXPECT_TRUE(eventually([&] { return threads() <= running; })) << "the kernel lists a joined thread a moment longer";
    pair = {};
    EXPECT_GT(mappings(), maps) << "what is held stays";
    EXPECT_EQ(relay_testing::differs(4, held.sizes, parts), "");
    parts.clear();
    EXPECT_EQ(mappings(), maps);
    EXPECT_EQ(open_fds(), fds);
  }
}

TEST(ShmRelay, AKilledPeerLeavesNothing) {
  auto relay = relay_testing::make_relay_of(setup(), tolerant_options());
  const std::size_t fds = open_fds(), maps = mappings();
  for (uint64_t round = 0; round < 5; ++round) {
    {
      auto peer = Peer::start(setup(), tolerant_options());
      ASSERT_TRUE(peer);
      Sent sent = relay_testing::send(*relay, round, {kMib});
      ASSERT_TRUE(sent.ticket.ok());
      const std::string get =
          fmt::format("get {} {} {} 60000", relay_testing::hex(sent.ticket->descriptor), round, kMib);
      ASSERT_EQ(peer->ask(get), "ok");
      const std::string put = peer->ask("put 9 5000,3");
      ASSERT_TRUE(put.starts_with("ok "));
      auto parts = relay_testing::receive(*relay, relay_testing::unhex(put.substr(3)), {5000, 3}).outcome();
      ASSERT_TRUE(parts.ok());
      EXPECT_EQ(named_segments(), "");
      peer->kill();  // it holds ours, and we hold its
      expect_put_end(sent, {StatusCode::kUnavailable});
      EXPECT_EQ(relay_testing::differs(9, {5000, 3}, *parts), "");
    }
    relay_testing::expect_quiet(*relay);
    EXPECT_TRUE(eventually([&] { return open_fds() == fds && mappings() == maps; }))
        << open_fds() << ", " << mappings();
  }
}

TEST(ShmRelay, APutForADeadReaderEndsAtOnce) {
  auto relay = relay_testing::make_relay_of(setup(), tolerant_options());
  for (const bool dead_before : {true, false}) {
    auto peer = Peer::start(setup(), tolerant_options());
    ASSERT_TRUE(peer);
    const std::string address = relay_testing::unhex(peer->ask("address").substr(3));
    if (dead_before) peer->kill();
    Sent sent = relay_testing::send(*relay, 1, {1000}, {.destination = address});  // it never asked for anything
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    if (!dead_before) peer->kill();
    expect_put_end(sent, {StatusCode::kUnavailable});
  }
  relay_testing::expect_quiet(*relay);
}

TEST(ShmRelay, AGetFromADeadWriterEndsAtOnce) {
  auto relay = relay_testing::make_relay_of(setup(), tolerant_options());
  auto peer = Peer::start(setup(), tolerant_options());
  ASSERT_TRUE(peer);
  const std::string put = peer->ask("put 9 5000");
  ASSERT_TRUE(put.starts_with("ok "));
  peer->kill();
  relay_testing::expect_refused(relay_testing::receive(*relay, relay_testing::unhex(put.substr(3)), {5000}),
                                {StatusCode::kUnavailable}, "a put of the dead");
}

TEST(ShmRelay, BadAddressesAndDeviceMemoryAreRefused) {
  auto relay = relay_testing::make_relay_of(setup(), tolerant_options());
  for (const std::string& address : {std::string("shm:"), std::string("tcp:127.0.0.1:5"), relay->address() + "0",
                                     relay->address().substr(0, 35) + "G", std::string(36, '\0')}) {
    EXPECT_EQ(relay_testing::send(*relay, 1, {10}, {.destination = address}).ticket.status().code(),
              StatusCode::kInvalidArgument);
  }
  relay_testing::AwaitPut end;
  const auto* device = reinterpret_cast<const std::byte*>(std::uintptr_t{0x1000});
  EXPECT_EQ(
      relay->put({.parts = {SharedBytes(nullptr, device, 16, Device::kCuda)}, .done = end.callback()}).status().code(),
      StatusCode::kUnsupported);
  RelayOptions options = tolerant_options();
  options.credits = 1 << 20;
  EXPECT_EQ(make_shm_relay(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(ShmRelay, RunningOutOfDescriptorsIsAnAnswer) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const std::size_t fds = open_fds();
  int refused = 0, made = 0;
  for (rlim_t limit = 4; limit < fds + 32; ++limit) {
    const rlimit small{limit, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
    {
      auto relay = make_shm_relay(tolerant_options());
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
      if (relay.ok()) {
        ++made;
      } else {
        ++refused;
        EXPECT_EQ(relay.status().code(), StatusCode::kResourceExhausted) << relay.status().to_string();
      }
    }
    ASSERT_EQ(open_fds(), fds) << "with a limit of " << limit;
  }
  EXPECT_GT(refused, 4);
  EXPECT_GT(made, 0);
  // A writer that cannot take one more reader goes on, and takes it when there is capacity again.
  relay_testing::Pair pair = relay_testing::make_pair_of(setup(), tolerant_options());
  Sent sent = relay_testing::send(*pair.writer, 1, {100});
  const rlimit none{open_fds() - 1, before.rlim_max};  // open_fds() counted its own descriptor
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  auto received = relay_testing::receive(*pair.reader, sent);
  ::usleep(20'000);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto parts = received.outcome();
  if (!parts.ok()) {
    EXPECT_EQ(parts.status().code(), StatusCode::kUnavailable) << parts.status().to_string();
  }
  relay_testing::expect_round_trip(*pair.writer, *pair.reader, 2, {100});
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::relay_testing::conformance_main(argc, argv, {millrace::setup()}); }
