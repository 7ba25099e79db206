// Placement: serving replicas by the stage's policy, and books that balance.
#include "pipeline/placement.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::vector<StageSpec> stages(ReplicaPolicy policy) {
  return {{.name = "one"}, {.name = "three", .replicas = 3, .replica_policy = policy}, {.name = "two", .replicas = 2}};
}

bool all(std::size_t, uint32_t) { return true; }

TEST(Placement, OnlyTheStagesOfTheRequestAreInItsRoute) {
  Placement placement(stages(ReplicaPolicy::kRoundRobin));
  EXPECT_EQ(placement.begin(stage_bit(0), all), (Placement::Route{0, -1, -1}));
  EXPECT_EQ(placement.begin(stage_bit(1) | stage_bit(2), all), (Placement::Route{-1, 0, 0}));
  EXPECT_EQ(placement.begin(0, all), (Placement::Route{-1, -1, -1}));
}

TEST(Placement, RoundRobinTakesTurnsAmongThoseThatServe) {
  Placement placement(stages(ReplicaPolicy::kRoundRobin));
  std::vector<int32_t> seen;
  for (int i = 0; i < 6; ++i) seen.push_back(placement.begin(stage_bit(1), all)[1]);
  EXPECT_EQ(seen, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  const auto without_1 = [](std::size_t, uint32_t replica) { return replica != 1; };
  seen.clear();
  for (int i = 0; i < 4; ++i) seen.push_back(placement.begin(stage_bit(1), without_1)[1]);
  EXPECT_EQ(seen, (std::vector<int32_t>{0, 2, 0, 2}));
}

TEST(Placement, TheFewestRequestsWinAndAnEndMakesRoom) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  std::vector<Placement::Route> routes;
  for (int i = 0; i < 9; ++i) routes.push_back(placement.begin(stage_bit(1), all));
  for (uint32_t replica = 0; replica < 3; ++replica) EXPECT_EQ(placement.requests(1, replica), 3);
  for (const Placement::Route& route : routes) {
    if (route[1] == 2) placement.end(route);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(placement.begin(stage_bit(1), all)[1], 2);
}

TEST(Placement, AStageThatNoneServesGetsItsFirstReplica) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  const auto none = [](std::size_t, uint32_t) { return false; };
  EXPECT_EQ(placement.begin(stage_bit(0) | stage_bit(1), none), (Placement::Route{0, 0, -1}));
}

TEST(Placement, BooksBalanceWhateverHappens) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  std::vector<Placement::Route> live;
  uint64_t state = 7;
  const auto dice = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int round = 0; round < 5000; ++round) {
    const uint64_t draw = dice();
    if (draw % 2 == 0 || live.empty()) {
      live.push_back(
          placement.begin(draw % 8, [&](std::size_t, uint32_t replica) { return (draw >> replica & 1) != 0; }));
    } else {
      placement.end(live.back());
      live.pop_back();
    }
    for (std::size_t stage = 1; stage < 3; ++stage) {
      std::vector<int64_t> wanted(3);
      for (const Placement::Route& route : live) {
        if (route[stage] != Placement::kNone) ++wanted[static_cast<std::size_t>(route[stage])];
      }
      for (uint32_t replica = 0; replica < (stage == 1 ? 3u : 2u); ++replica) {
        ASSERT_EQ(placement.requests(stage, replica), wanted[replica]);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
