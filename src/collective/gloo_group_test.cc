// Broadcasts over connections that a test holds: what a peer may do wrong, limits, and how a wait ends.
#include "collective/gloo_group.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "collective/gloo_listener.h"
#include "collective/limits.h"
#include "collective/tcp_store_client.h"
#include "collective/testing/pipes.h"

namespace millrace::collective {
namespace {

// Rank 1 of two; the test is rank 0.
struct Pair {
  std::shared_ptr<CancelSignal> cancel = std::make_shared<CancelSignal>();
  StreamSocket trainer;
  std::unique_ptr<GlooGroup> group;

  Pair() {
    auto [local_end, peer_end] = socket_pair();
    std::vector<StreamSocket> sockets(2);
    sockets[0] = std::move(local_end);
    trainer = std::move(peer_end);
    group = std::make_unique<GlooGroup>(1, std::move(sockets), cancel);
  }
  Status receive(uint64_t bytes, std::string* out = nullptr) {
    return group->receive_broadcast(0, bytes, {soon().deadline}, [&](std::span<const std::byte> slice) {
      if (out != nullptr) out->append(reinterpret_cast<const char*>(slice.data()), slice.size());
      return ok_status();
    });
  }
  void send(const Preamble& preamble, std::string_view payload = "") {
    put(trainer, encode_preamble(preamble));
    put(trainer, payload);
  }
};

TEST(GlooGroup, ReceivesWhatIsAnnouncedAhead) {
  Pair pair;
  for (uint32_t i = 0; i < 3; ++i) pair.send(send_ready(broadcast_slot(i), 3));
  for (uint32_t i = 0; i < 3; ++i) pair.send(data_message(broadcast_slot(i), 3), "abc");
  for (int i = 0; i < 3; ++i) {
    std::string text;
    ASSERT_TRUE(pair.receive(3, &text).ok());
    EXPECT_EQ(text, "abc");
  }
}

TEST(GlooGroup, WrongLengthsAreRefusedBeforeAnyByte) {
  for (const bool announced : {true, false}) {
    Pair pair;
    pair.send(announced ? send_ready(broadcast_slot(0), 1ull << 60) : data_message(broadcast_slot(0), 1ull << 60));
    const Status status = pair.receive(8);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("1152921504606846976 bytes; wanted 8"), std::string::npos) << status.message();
    EXPECT_EQ(pair.receive(8).message(), status.message()) << "the group is of no more use";
  }
}

TEST(GlooGroup, MessagesThatContradictThemselvesAreRefused) {
  const uint64_t slot = broadcast_slot(0);
  const std::vector<std::pair<Preamble, const char*>> cases = {
      {{48, static_cast<GlooOp>(0), slot, 0, 8, 0}, "operation is 0"},
      {{48, static_cast<GlooOp>(4), slot, 0, 8, 0}, "operation is 4"},
      {{48, GlooOp::kData, slot, 0, 8, 0}, "has 48 bytes"},
      {{0, GlooOp::kData, slot, 0, 8, 0}, "has 0 bytes"},
      {{47 - 8ull + 48, GlooOp::kData, slot, 0, ~0ull, 0}, "wanted"},
      {{56, GlooOp::kSendReady, slot, 0, 8, 0}, "has 56 bytes"},
      {data_message(broadcast_slot(1), 8), "it sends broadcast 1"},
      {data_message(1ull << 56, 8), "a collective of kind 1"},
  };
  for (const auto& [preamble, part] : cases) {
    Pair pair;
    pair.send(preamble, "12345678");
    const Status status = pair.receive(8);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(GlooGroup, AFloodOfAnnouncementsIsRefused) {
  Pair pair;
  std::thread flood([&] {
    for (uint32_t i = 1; i <= kMaxAnnouncements + 1; ++i) {
      if (!pair.trainer.write_all(bytes_of(encode_preamble(send_ready(broadcast_slot(i), 8))), soon()).ok()) return;
    }
  });
  EXPECT_EQ(pair.receive(8).code(), StatusCode::kTooLarge);
  flood.join();
}

TEST(GlooGroup, TheCountOfCollectivesIsNamedWhereItDiffers) {
  Pair pair;
  pair.send(send_ready(broadcast_slot(5), 8));
  finish(pair.trainer);
  const Status status = pair.receive(8);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("broadcast 0 (it announced broadcast 5)"), std::string::npos) << status.message();
}

TEST(GlooGroup, ALostConnectionEndsTheReceiveAndNamesTheBytesReceived) {
  Pair pair;
  pair.send(data_message(broadcast_slot(0), 8), "123");
  finish(pair.trainer);
  const Status status = pair.receive(8);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("3 of 8 bytes"), std::string::npos) << status.message();
}

TEST(GlooGroup, ARefusedBroadcastIsReadToItsEnd) {
  Pair pair;
  const std::string payload(3 * kSliceBytes + 5, 'x');
  std::thread trainer([&] {
    pair.send(data_message(broadcast_slot(0), payload.size()), payload);
    pair.send(data_message(broadcast_slot(1), 2), "ok");
  });
  int calls = 0;
  const Status status = pair.group->receive_broadcast(0, payload.size(), {soon().deadline}, [&](auto) {
    ++calls;
    return invalid_argument("not this one");
  });
  EXPECT_EQ(status.message(), "not this one");
  EXPECT_EQ(calls, 1);
  std::string text;
  EXPECT_TRUE(pair.receive(2, &text).ok());
  EXPECT_EQ(text, "ok");
  trainer.join();
}

TEST(GlooGroup, WaitsEnd) {
  Pair late;
  EXPECT_EQ(late.group->receive_broadcast(0, 8, {Clock::now()}, [](auto) { return ok_status(); }).code(),
            StatusCode::kDeadline);
  Pair slow;
  const ReceiveLimits no_progress{soon().deadline, std::chrono::milliseconds(1)};
  EXPECT_EQ(slow.group->receive_broadcast(0, 8, no_progress, [](auto) { return ok_status(); }).code(),
            StatusCode::kDeadline);
  Pair cancelled;
  std::thread other([&] { cancelled.cancel->cancel(); });
  EXPECT_EQ(cancelled.receive(8).code(), StatusCode::kCancelled);
  other.join();
  Pair lost;
  std::thread trainer([&] { lost.trainer = StreamSocket(); });
  EXPECT_EQ(lost.group->await_loss(soon().deadline).code(), StatusCode::kUnavailable);
  trainer.join();
}

TEST(GlooGroup, TreesAreBinomial) {
  // Of 8 ranks and the root 0, as gloo's own comments draw it.
  const std::vector<int> parents = {-1, 0, 0, 1, 0, 1, 2, 3};
  const std::vector<std::vector<int>> children = {{1, 2, 4}, {3, 5}, {6}, {7}, {}, {}, {}, {}};
  for (int rank = 0; rank < 8; ++rank) {
    const BroadcastTree tree = broadcast_tree(rank, 8, 0);
    EXPECT_EQ(tree.parent, parents[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(tree.children, children[static_cast<std::size_t>(rank)]) << rank;
  }
  // For any group and root: each rank but the root has one parent, which has it among its children.
  for (int world = 2; world < 20; ++world) {
    for (int root = 0; root < world; ++root) {
      std::map<int, int> parent_of;
      for (int rank = 0; rank < world; ++rank) {
        for (const int child : broadcast_tree(rank, world, root).children) {
          EXPECT_TRUE(parent_of.emplace(child, rank).second) << world << " " << root;
        }
      }
      EXPECT_EQ(parent_of.size(), static_cast<std::size_t>(world - 1));
      for (const auto& [child, parent] : parent_of) EXPECT_EQ(broadcast_tree(child, world, root).parent, parent);
    }
  }
}

TEST(GlooListener, OnlyConnectionsThatNameAPairAreTaken) {
  SocketAddress loopback = resolve("127.0.0.1", 0)->front();
  Result<GlooListener> listener = GlooListener::open(loopback, 128);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  const auto open = [&](std::string_view bytes) {
    Result<StreamSocket> socket = connect_to(listener->address(), soon());
    CHECK(socket.ok());
    put(*socket, bytes);
    return std::move(*socket);
  };
  std::vector<StreamSocket> open_sockets;
  for (std::size_t i = 0; i < kMaxPendingConnections; ++i) open_sockets.push_back(open(i % 2 == 0 ? "" : "abc"));
  open_sockets.push_back(open("wrong id"));
  open_sockets.push_back(open("AAAAAAAArest"));
  open_sockets.push_back(open("BBBBBBBB"));
  const std::string ids = "AAAAAAAABBBBBBBB";
  std::vector<StreamSocket> out(3);
  const Status status =
      listener->accept_pairs({{read_int<int64_t>(ids), 2}, {read_int<int64_t>(ids, 8), 0}}, out, soon());
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(out[0].open() && !out[1].open() && out[2].open());
  std::string rest(4, '\0');
  ASSERT_TRUE(out[2].read_all(bytes_of(rest), soon()).ok());
  EXPECT_EQ(rest, "rest");
  const Status none = listener->accept_pairs({{1, 1}}, out, {Clock::now(), nullptr});
  EXPECT_EQ(none.code(), StatusCode::kDeadline);
  EXPECT_NE(none.message().find("rank 1 has not connected"), std::string::npos);
}

// Ranks connect while this one still connects to others, so all of them may wait when the first one is accepted.
TEST(GlooListener, AllRanksMayHaveConnectedBeforeTheFirstIsAccepted) {
  constexpr int kRanks = 100;
  static_assert(kRanks > kMaxPendingConnections);
  Result<GlooListener> listener = GlooListener::open(resolve("127.0.0.1", 0)->front(), 512);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  std::vector<StreamSocket> open_sockets;
  const auto open = [&](std::string_view bytes) {
    Result<StreamSocket> socket = connect_to(listener->address(), soon());
    ASSERT_TRUE(socket.ok()) << socket.status().to_string();
    put(*socket, bytes);
    open_sockets.push_back(std::move(*socket));
  };
  std::map<int64_t, int> expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string id;
    append_int<int64_t>(id, 1000 + rank);
    expected[1000 + rank] = rank;
    open(id);
  }
  // Behind them more that send nothing than may be kept.
  for (std::size_t i = 0; i < 2 * kMaxPendingConnections; ++i) open("");
  std::vector<StreamSocket> out(kRanks);
  const Status status = listener->accept_pairs(expected, out, soon());
  EXPECT_TRUE(status.ok()) << status.to_string();
  for (const StreamSocket& socket : out) EXPECT_TRUE(socket.open());
}

// PyTorch 1.13 names no pair: a connection from another host than the rank's is not the rank.
TEST(GlooListener, AConnectionOfAnotherHostIsClosed) {
  Result<GlooListener> listener = GlooListener::open(resolve("127.0.0.1", 0)->front(), 8);
  ASSERT_TRUE(listener.ok()) << listener.status().to_string();
  Result<StreamSocket> socket = connect_to(listener->address(), soon());
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  CancelSignal cancel;
  Status status;
  std::thread rank([&] {
    const WaitLimit limit{soon().deadline, &cancel};
    status = listener->accept_from(resolve("192.0.2.1", 7)->front(), limit).status();
  });
  std::string byte(1, '\0');
  EXPECT_EQ(socket->read_all(bytes_of(byte), soon()).code(), StatusCode::kUnavailable) << "it was not closed";
  cancel.cancel();
  rank.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.to_string();
  EXPECT_NE(status.message().find("nothing came from 192.0.2.1, but from 127.0.0.1"), std::string::npos)
      << status.message();
  socket = connect_to(listener->address(), soon());
  EXPECT_TRUE(listener->accept_from(resolve("127.0.1.1", 7)->front(), soon()).ok());
}

TEST(TcpStore, HostileRepliesAreRefused) {
  const auto get = [](const std::string& reply) {
    auto [local_end, peer_end] = socket_pair();
    put(peer_end, reply);
    finish(peer_end);
    TcpStoreClient client(std::move(local_end), StoreDialect::kTorch2);
    return client.get("/k", soon()).status();
  };
  std::string huge(1, '\0');
  append_int<uint64_t>(huge, ~0ull);
  EXPECT_EQ(get(huge).code(), StatusCode::kTooLarge);
  EXPECT_EQ(get("\1").code(), StatusCode::kUnavailable);  // the wait was cancelled
  EXPECT_EQ(get("").code(), StatusCode::kUnavailable);
  std::string cut(1, '\0');
  append_int<uint64_t>(cut, 100);
  EXPECT_EQ(get(cut + "abc").code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::collective
