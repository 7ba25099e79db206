// The route of a request: which replica and incarnation of each target gets what a stage sends.
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

class StageLoopRoute : public OneStage {
 protected:
  void result(Value value) {
    log_->on_start = [value](ReqId id, const Value&, Emit& emit) { emit.result(id, value); };
  }
};

TEST_F(StageLoopRoute, TheRouteNamesTheReplica) {
  config_.replicas["x"] = 3;
  spec_.next = {"x"};
  spec_.stream_to = {"x"};
  route_of_ = [](uint64_t id) {
    return std::vector<wire::RouteHop>{{"y", 9, 9}, {"x", static_cast<uint32_t>(id % 3)}};
  };
  make();
  for (uint64_t id = 1; id <= 6; ++id) receive(payload(id, "a", number(1)));
  log_->next_tick.push_back([](Emit& emit) {
    for (uint64_t id = 1; id <= 6; ++id) emit.chunk({id}, number(0)), emit.result({id}, number(3));
  });
  run(1);
  for (uint32_t replica = 0; replica < 3; ++replica) {
    const auto sent = out("x", replica)->chunks();
    ASSERT_EQ(sent.size(), 6u);  // of two requests: chunk, end, payload
    EXPECT_EQ(out("x", replica)->all<wire::ChunkBatch>().size(), 1u);
    for (const auto& m : sent) EXPECT_EQ(m.id.value % 3, replica);
    for (const std::size_t first : {0u, 3u}) {
      // The first chunk of an edge brings what the receiver must know; the others need not repeat it.
      ASSERT_TRUE(sent[first].opening);
      EXPECT_EQ(sent[first].opening->route, route_of_(sent[first].id.value));
      EXPECT_EQ(sent[first].opening->terminals, std::vector<std::string>{"end"});
      EXPECT_FALSE(sent[first + 1].opening || sent[first + 2].opening);
    }
  }
}

TEST_F(StageLoopRoute, ARequestWithoutARouteToReplicasFails) {
  config_.replicas["x"] = 3;
  spec_.next = {"x"};
  result(number(3));
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(failure(1, StatusCode::kInternal),
            "mid: to 'x': the request's route has no replica of it; wanted one of 3");
}

// The sender's table may be older than the route, or newer.
TEST_F(StageLoopRoute, TheRouteNamesTheIncarnation) {
  spec_.next = {"x"};
  incarnation_["x"] = 5;
  result(number(3));
  route_of_ = [](uint64_t id) { return std::vector<wire::RouteHop>{{"x", 0, 4 + id}}; };
  make();
  receive(payload(1, "a", number(1)));
  EXPECT_EQ(out("x")->chunks().size(), 1u);
  receive(payload(2, "a", number(1)));
  run(20);
  EXPECT_EQ(out("x")->chunks().size(), 1u);  // incarnation 6 is not in the table yet
  incarnation_["x"] = 6;
  peers();
  run(20);
  EXPECT_EQ(out("x")->chunks().size(), 2u);
  incarnation_["x"] = 8;
  peers();
  receive(payload(3, "a", number(1)));
  EXPECT_EQ(failure(3, StatusCode::kUnavailable), "mid: to 'x': replica 0 has died and come back");
}

TEST_F(StageLoopRoute, AReplicaThatDiesFailsItsRequestsAlone) {
  config_.replicas["x"] = 2;
  spec_.next = {"x"};
  spec_.stream_to = {"x"};
  route_of_ = [](uint64_t id) { return std::vector<wire::RouteHop>{{"x", static_cast<uint32_t>(id % 2)}}; };
  make();
  for (uint64_t id = 1; id <= 20; ++id) receive(payload(id, "a", number(1)));
  log_->next_tick.push_back([](Emit& emit) {
    for (uint64_t id = 1; id <= 20; ++id) emit.chunk({id}, number(0));
  });
  run(1);
  wire::Peers next_table = table();
  for (auto& peer : next_table.peers) {
    if (peer.stage == "x" && peer.replica == 1) peer.up = false;
  }
  deliver(next_table);
  std::size_t failed = 0;
  for (uint64_t id = 1; id <= 20; ++id) {
    if (id % 2 != 1) continue;
    ++failed;
    failure(id, StatusCode::kUnavailable);
  }
  EXPECT_GT(failed, 2u);
  EXPECT_EQ(ends().size(), failed);
}

}  // namespace
}  // namespace millrace::testing
