// Core over a channel that is played here: when a loop counts as paused, and what stays after an
// end that was not clean.
#include <gtest/gtest.h>

#include <array>

#include "base/clock.h"
#include "relay/session/core.h"

namespace millrace::session {
namespace {

struct PlayedLink : Link {
  PlayedLink() : Link(0) {}
  bool ready() const override { return true; }
  Status send(const Header&, std::span<const std::byte>) override { return ok_status(); }
};

struct PlayedChannel : Channel {
  const Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override { return {.name = "played"}; }
  std::string address() const override { return "played"; }
  Result<std::string> store(Put&) override { return std::string(); }
  Result<Target> target_of(const Descriptor&) const override { return Target(); }
  Result<Link*> connect(const Target&) override { return static_cast<Link*>(&link); }
  Result<std::optional<Landing>> make_memory(const GetRequest&, const Layout&) override {
    const auto memory = std::make_shared<std::array<std::byte, kBytes>>();
    landed = memory;
    Landing landing;
    landing.into.add(memory->data(), kBytes);
    landing.parts.emplace_back(memory, memory->data(), kBytes);
    return std::optional<Landing>(std::move(landing));
  }
  int64_t check_time(int64_t) override { return due_ms; }
  void compensate_pause(int64_t) override { ++pauses; }
  bool shut_down() override { return clean; }

  static constexpr std::size_t kBytes = 64;
  Traits traits_;
  PlayedLink link;
  std::weak_ptr<void> landed;  // the memory of the last get
  bool clean = true;
  int64_t due_ms = INT64_MAX;
  int pauses = 0;
};

class SessionCore : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(core.loop.open().ok());
    core.channel = std::make_unique<PlayedChannel>();
    channel = static_cast<PlayedChannel*>(core.channel.get());
  }

  static constexpr int kSilentMs = 2'000;
  Core core{RelayOptions{.silent_ms = kSilentMs}};
  PlayedChannel* channel = nullptr;
};

TEST_F(SessionCore, ALateLoopWasPausedAndAnIdleOneWasNot) {
  int64_t now_ms = 1'000'000;
  (void)core.turn_end(now_ms);
  EXPECT_EQ(channel->pauses, 0) << "the first turn";
  channel->due_ms = now_ms + 20'000;  // an idle connection
  (void)core.turn_end(now_ms += 20);
  (void)core.turn_end(now_ms = channel->due_ms + 5);
  EXPECT_EQ(channel->pauses, 0) << "it had nothing to do";
  channel->due_ms = now_ms + kSilentMs / 4;  // a PING
  (void)core.turn_end(now_ms += 20);
  (void)core.turn_end(now_ms += 60'000);
  EXPECT_EQ(channel->pauses, 1);
}

// A transport that was abandoned may still write to what it fetches into.
TEST_F(SessionCore, MemoryThatIsFetchedIntoStaysWhereTheEndWasNotClean) {
  for (const bool clean : {true, false}) {
    Core core{RelayOptions{.checksum = false}};
    ASSERT_TRUE(core.loop.open().ok());
    core.channel = std::make_unique<PlayedChannel>();
    auto& played = static_cast<PlayedChannel&>(*core.channel);
    played.clean = clean;
    GetRequest request{.sizes = {PlayedChannel::kBytes}};
    request.done = [](Result<std::vector<SharedBytes>>) {};
    GetTask task{.put = 5, .generation = 6, .total = PlayedChannel::kBytes};
    task.op = core.table.open_get(std::move(request), monotonic_ms()).value();
    core.reader.start(task);
    core.table.unpin(task.op);
    core.reader.flush();
    const Header data{.type = FrameType::kData,
                      .length = PlayedChannel::kBytes,
                      .op = task.put,
                      .generation = task.generation,
                      .ticket = task.op.value};
    const auto fetch = core.reader.begin_fetch(played.link, data);
    ASSERT_TRUE(fetch.ok() && *fetch) << fetch.status().to_string();
    core.stop();
    core.table.close();
    EXPECT_EQ(core.run(), clean);
    EXPECT_EQ(played.landed.expired(), clean);
  }
}

}  // namespace
}  // namespace millrace::session
