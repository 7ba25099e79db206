// Groups with ranks that are processes of another implementation, tests/oracles/gloo_peer.py, in both dialects.
#include "collective/process_group.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "collective/testing/pipes.h"

namespace millrace::collective {
namespace {

struct Case {
  int dialect, world, rank;
};

class ProcessGroupTest : public testing::TestWithParam<Case> {};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return fmt::format("torch{}_world{}_rank{}", info.param.dialect, info.param.world, info.param.rank);
}

INSTANTIATE_TEST_SUITE_P(Groups, ProcessGroupTest,
                         testing::Values(Case{2, 2, 1}, Case{1, 2, 1}, Case{2, 5, 1}, Case{2, 5, 2}, Case{1, 4, 1},
                                         Case{2, 3, 2}),
                         case_name);

// The ranks but one as processes; rank 0 prints the port of its store first.
struct Peers {
  std::deque<PythonRank> ranks;
  uint16_t port = 0;

  Peers(int dialect, int world, int missing) {
    const std::string kind = std::to_string(dialect), size = std::to_string(world);
    ranks.emplace_back(std::vector<std::string>{"--world", size, "--dialect", kind});
    port = static_cast<uint16_t>(ranks.front().answer("port"));
    for (int rank = 1; rank < world; ++rank) {
      if (rank == missing) continue;
      ranks.emplace_back(std::vector<std::string>{"--rank", std::to_string(rank), "--world", size, "--dialect", kind,
                                                  "--port", std::to_string(port)});
    }
  }
  void command(const std::string& line) {
    for (PythonRank& rank : ranks) rank.command(line);
  }
};

std::unique_ptr<ProcessGroup> join(Peers& peers, int world, int rank) {
  Result<std::unique_ptr<ProcessGroup>> group = join_gloo_group({"127.0.0.1", peers.port, rank, world, "weights", ""},
                                                                std::make_shared<CancelSignal>(), soon().deadline);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  if (!group.ok()) return nullptr;
  for (PythonRank& peer : peers.ranks) peer.answer("joined");
  return std::move(*group);
}

TEST_P(ProcessGroupTest, ReceivesAndSendsOn) {
  const auto [dialect, world, rank] = GetParam();
  Peers peers(dialect, world, rank);
  const auto group = join(peers, world, rank);
  ASSERT_NE(group, nullptr);
  int seed = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{0}, uint64_t{48}, uint64_t{3'000'000}, uint64_t{17}}) {
    peers.command(fmt::format("broadcast {} {}", ++seed, bytes));
    Crc32 sum;
    const Status status = group->receive_broadcast(0, bytes, {soon().deadline}, [&](std::span<const std::byte> slice) {
      sum.add(slice);
      return ok_status();
    });
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (PythonRank& peer : peers.ranks) EXPECT_EQ(peer.answer("crc"), sum.value());
  }
}

TEST(ProcessGroup, ATrainerThatSendsAnotherLengthOrDiesIsNoticed) {
  for (const auto& [command, code] : {std::pair{"other 1 1000 999", StatusCode::kInvalidArgument},
                                      std::pair{"cut 1 1000 500", StatusCode::kUnavailable}}) {
    Peers peers(2, 2, 1);
    const auto group = join(peers, 2, 1);
    ASSERT_NE(group, nullptr);
    peers.command(command);
    const Status status = group->receive_broadcast(0, 1000, {soon().deadline}, [](auto) { return ok_status(); });
    EXPECT_EQ(status.code(), code) << status.to_string();
    peers.ranks.front().answer("crc");
  }
}

TEST(ProcessGroup, OptionsAreChecked) {
  const auto refused = [](const GroupOptions& options) {
    return join_gloo_group(options, std::make_shared<CancelSignal>(), soon().deadline).status().code() ==
           StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({"127.0.0.1", 1, 0, 2, "g", ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 1, 2, 2, "g", ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 1, 1, 1, "g", ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 1, 1, 1'000'000, "g", ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 1, 1, 2, "", ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 1, 1, 2, std::string(1000, 'g'), ""}));
  EXPECT_TRUE(refused({"127.0.0.1", 0, 1, 2, "g", ""}));
}

TEST(ProcessGroup, OnlyAllowedHostsAreConnectedTo) {
  const auto join_at = [](const std::string& address, const std::string& allowed) {
    return join_gloo_group({address, 1, 1, 2, "g", allowed}, std::make_shared<CancelSignal>(), Clock::now()).status();
  };
  for (const char* allowed : {"", "192.0.2.8", "192.0.2.8,192.0.2.9"}) {
    const Status status = join_at("192.0.2.7", allowed);  // an address for documents
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << allowed;
    EXPECT_NE(status.message().find("192.0.2.7 is not among --trainer-hosts"), std::string::npos);
  }
  // Without a route the system refuses at once.
  const StatusCode tried = join_at("192.0.2.7", "192.0.2.8,192.0.2.7").code();
  EXPECT_TRUE(tried == StatusCode::kDeadline || tried == StatusCode::kUnavailable) << status_code_name(tried);
  EXPECT_EQ(join_at("127.1.2.3", "192.0.2.8").code(), StatusCode::kDeadline);
}

// A port that is taken and on which nothing listens.
struct SilentPort {
  StreamSocket socket;
  uint16_t port = 0;

  explicit SilentPort(bool listens) {
    SocketAddress bound;
    socket = StreamSocket(listen_at(resolve("127.0.0.1", 0)->front(), 1, bound).value());
    port = bound.port();
    if (!listens) socket = StreamSocket();
  }
};

TEST(ProcessGroup, AJoinEndsWithItsDeadlineOrACancel) {
  for (const bool listens : {true, false}) {
    const SilentPort store(listens);
    const Status late = join_gloo_group({"127.0.0.1", store.port, 1, 2, "g", ""}, std::make_shared<CancelSignal>(),
                                        Clock::now() + std::chrono::milliseconds(100))
                            .status();
    EXPECT_FALSE(late.ok());
    EXPECT_NE(late.message().find(std::to_string(store.port)), std::string::npos) << late.message();
    const auto cancel = std::make_shared<CancelSignal>();
    std::thread other([&] { cancel->cancel(); });
    EXPECT_FALSE(join_gloo_group({"127.0.0.1", store.port, 1, 2, "g", ""}, cancel, soon().deadline).ok());
    other.join();
  }
}

}  // namespace
}  // namespace millrace::collective
