// The local relay: the conformance suite, and what is its own.
#include "relay/local/local_relay.h"

#include <gtest/gtest.h>

#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"
#include "relay/testing/peer.h"

namespace millrace {
namespace {

using relay_testing::make_part;

relay_testing::ConformanceSetup setup() {
  return {.name = "local", .make = [](const RelayOptions& options) { return make_local_relay(options); }};
}

TEST(LocalRelay, ADescriptorOfAnotherProcessIsRefused) {
  const RelayOptions options = relay_testing::small_options(setup());
  auto peer = relay_testing::Peer::start(setup(), options);
  ASSERT_TRUE(peer);
  const std::string answer = peer->ask("put 1 100,200");
  ASSERT_TRUE(answer.starts_with("ok ")) << answer;
  auto relay = relay_testing::make_relay_of(setup(), options);
  relay_testing::expect_refused(relay_testing::receive(*relay, relay_testing::unhex(answer.substr(3)), {100, 200}),
                                {StatusCode::kUnavailable}, "a put of another process");
}

TEST(LocalRelay, DeviceMemoryPassesUntouched) {
  auto relay = relay_testing::make_relay_of(setup(), {});
  // An address of a device that this test must never follow.
  const auto* device = reinterpret_cast<const std::byte*>(std::uintptr_t{0x1000});
  auto owner = std::make_shared<int>(1);
  relay_testing::AwaitPut end;
  auto ticket = relay->put({.parts = {SharedBytes(owner, device, 4096, Device::kCuda)}, .done = end.callback()});
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(owner.use_count() > 1, true);
  {
    const auto parts = relay_testing::receive(*relay, ticket->descriptor, {4096}).outcome();
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ((*parts)[0].data(), device);
    EXPECT_EQ((*parts)[0].device(), Device::kCuda);
  }
  EXPECT_TRUE(end.wait().value_or(Status(StatusCode::kInternal, "")).ok());
  EXPECT_EQ(owner.use_count(), 1) << "still referenced";
}

TEST(LocalRelay, DeviceMemoryIsNotCopiedIntoHostMemory) {
  auto relay = relay_testing::make_relay_of(setup(), {});
  const auto* device = reinterpret_cast<const std::byte*>(std::uintptr_t{0x1000});
  relay_testing::AwaitPut end;
  auto ticket = relay->put({.parts = {SharedBytes(nullptr, device, 16, Device::kCuda)}, .done = end.callback()});
  ASSERT_TRUE(ticket.ok());
  std::vector<std::byte> memory(16);
  relay_testing::Received received;
  received.op = relay->get(
      {.descriptor = ticket->descriptor, .sizes = {16}, .destination = {memory}, .done = received.end.callback()});
  EXPECT_EQ(received.outcome().status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::relay_testing::conformance_main(argc, argv, {millrace::setup()}); }
