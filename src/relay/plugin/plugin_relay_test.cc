// The plugin relay: the conformance suite over the test plugin, through the C interface and from a shared object; the
// same with messages lost and doubled; plugins that hang; files that are no plugins.
#include "relay/plugin/plugin_relay.h"

#include <gtest/gtest.h>

#include <fstream>

#include "relay/plugin/message.h"
#include "relay/plugin/plugin_library.h"
#include "relay/session/extents.h"
#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"

namespace millrace {
namespace {

using relay_testing::receive;
using relay_testing::send;

relay_testing::ConformanceSetup setup(std::string name, std::string listen) {
  relay_testing::ConformanceSetup setup{.name = std::move(name)};
  setup.options.listen = std::move(listen);
  setup.make = [](const RelayOptions& options) -> Result<std::unique_ptr<Relay>> {
    ASSIGN_OR_RETURN(const millrace_relay_plugin* plugin, load_plugin(MILLRACE_TEST_PLUGIN));
    return make_plugin_relay(plugin, options);
  };
  return setup;
}

TEST(PluginRelay, ADeadlineHoldsWhileThePluginHangs) {
  const auto hanging = setup("hanging", "hang_read");
  auto options = relay_testing::small_options(hanging);
  auto writer = relay_testing::make_relay_of(hanging, options), reader = relay_testing::make_relay_of(hanging, options);
  ASSERT_TRUE(writer && reader);
  auto sent = send(*writer, 1, {5000});
  ASSERT_TRUE(sent.ticket.ok());
  auto received = receive(*reader, sent, 300);
  EXPECT_EQ(received.outcome().status().code(), StatusCode::kDeadline);
  // The writer still counts it as read: it is unknown whether the read will end.
  EXPECT_EQ(sent.end.count(), 0);
  writer->cancel(sent.ticket->op);
  relay_testing::expect_put_end(sent, {StatusCode::kCancelled});
  EXPECT_EQ(writer->books().held_bytes, 5000u);
  reader->close();
  writer->close();
}

TEST(PluginRelay, LostAndDoubledMessagesCostTimeOnly) {
  const auto bad = setup("bad_wire", "drop=7 double=5");
  auto options = relay_testing::small_options(bad);
  options.silent_ms = 30'000;
  auto writer = relay_testing::make_relay_of(bad, options), reader = relay_testing::make_relay_of(bad, options);
  ASSERT_TRUE(writer && reader);
  for (uint64_t seed = 0; seed < 100 && !HasFatalFailure(); ++seed) {
    relay_testing::expect_round_trip(*writer, *reader, seed, relay_testing::random_sizes(seed, 5, 10'000));
  }
  relay_testing::expect_quiet(*writer);
  relay_testing::expect_quiet(*reader);
}

TEST(PluginRelay, CloseLeavesAHangingPluginBehind) {
  const auto hanging = setup("hanging", "hang_close");
  auto relay = relay_testing::make_relay_of(hanging, relay_testing::small_options(hanging));
  ASSERT_TRUE(relay);
  const auto sent = send(*relay, 1, {100});
  relay->close();  // returns: that is the test
  EXPECT_EQ(sent.end.count(), 1);
  EXPECT_EQ(relay->books().puts, 0);
}

TEST(PluginLibrary, WhatIsNoPluginIsAbsentWithAReason) {
  const auto missing = load_plugin("/nowhere/relay_nixl.so");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(missing.status().message(), "the plugin '/nowhere/relay_nixl.so' is not there");
  const std::string text = testing::TempDir() + "relay_text.so";
  std::ofstream(text) << "this is no library";
  EXPECT_EQ(load_plugin(text).status().code(), StatusCode::kUnavailable);
  const auto other_library = load_plugin("/lib/x86_64-linux-gnu/libc.so.6");
  ASSERT_FALSE(other_library.ok());
  EXPECT_EQ(other_library.status().code(), StatusCode::kUnavailable);
}

TEST(PluginLibrary, PathsStandBesideTheProgramOrWhereConfigured) {
  EXPECT_EQ(plugin_path("/opt/x", "nixl"), "/opt/x/relay_nixl.so");
  EXPECT_TRUE(plugin_path("", "nixl").ends_with("/plugins/relay_nixl.so"));
}

TEST(PluginMessage, RoundTripsAndRefusesEveryOtherLength) {
  plugin::Message message;
  message.header.type = session::FrameType::kRequest;
  message.header.length = session::kRequestBytes;
  message.header.ticket = 4;
  message.payload = std::string(session::kRequestBytes, 'p');
  message.blob = "blob";
  message.from[3] = 7;
  message.to[15] = 9;
  const std::string bytes = plugin::encode_message(message);
  ASSERT_EQ(bytes.size(), 32u + 64 + 16 + 4);
  const auto back = plugin::decode_message(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->blob, "blob");
  EXPECT_EQ(back->payload, message.payload);
  EXPECT_EQ(back->from, message.from);
  EXPECT_EQ(back->to, message.to);
  EXPECT_EQ(back->header, message.header);
  for (std::size_t i = 0; i < bytes.size() - 3; ++i) EXPECT_FALSE(plugin::decode_message(bytes.substr(0, i)).ok());
  EXPECT_FALSE(plugin::decode_message(bytes + std::string(MILLRACE_RELAY_MAX_BLOB, 'x')).ok());
  for (std::size_t i = 32; i < 96; ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    EXPECT_FALSE(plugin::decode_message(bad).ok()) << i;
  }
  message.header = {};
  message.payload.clear();
  message.blob.clear();
  const std::string ping = plugin::encode_message(message);
  EXPECT_TRUE(plugin::decode_message(ping).ok());
  EXPECT_FALSE(plugin::decode_message(ping + "x").ok());
}

TEST(Extents, RandomTakesNeverOverlapAndAllComesBack) {
  constexpr uint64_t kBytes = 1 << 16;
  session::Extents pool(4096, kBytes);
  std::map<uint64_t, uint64_t> taken;
  uint64_t state = 1;
  for (int i = 0; i < 5000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    if (state >> 63 && !taken.empty()) {
      auto at = taken.lower_bound((state >> 20) % kBytes);
      if (at == taken.end()) at = taken.begin();
      pool.release(at->first);
      taken.erase(at);
      continue;
    }
    const uint64_t bytes = (state >> 40) % 5000;
    if (const auto offset = pool.take(bytes)) {
      EXPECT_EQ(*offset % 64, 0u);
      EXPECT_GE(*offset, 4096u);
      EXPECT_LE(*offset + bytes, 4096 + kBytes);
      const auto next = taken.lower_bound(*offset);
      EXPECT_TRUE(next == taken.end() || *offset + std::max<uint64_t>(bytes, 1) <= next->first);
      EXPECT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= *offset);
      taken[*offset] = bytes;
    }
  }
  for (const auto& [offset, bytes] : taken) pool.release(offset);
  EXPECT_TRUE(pool.take(kBytes).has_value()) << "contiguous again";
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::relay_testing::conformance_main(argc, argv, {millrace::setup("plugin", "")});
}
