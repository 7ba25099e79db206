// Placement: serving replicas by the stage's policy, and books that balance.
#include "pipeline/placement.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::vector<StageSpec> stages(ReplicaPolicy policy) {
  return {{.name = "one"}, {.name = "three", .replicas = 3, .replica_policy = policy}, {.name = "two", .replicas = 2}};
}

constexpr std::size_t kNone = Placement::kNone;

// The slots: "one" has 0, "three" has 1 to 3, "two" has 4 and 5.
constexpr std::size_t kFirst[] = {0, 1, 4};

bool all(std::size_t) { return true; }

TEST(Placement, OnlyTheStagesOfTheRequestAreInItsRoute) {
  Placement placement(stages(ReplicaPolicy::kRoundRobin));
  EXPECT_EQ(placement.begin(stage_bit(0), all), (Placement::Route{0, kNone, kNone}));
  EXPECT_EQ(placement.begin(stage_bit(1) | stage_bit(2), all), (Placement::Route{kNone, 1, 4}));
  EXPECT_EQ(placement.begin(0, all), (Placement::Route{kNone, kNone, kNone}));
}

TEST(Placement, RoundRobinTakesTurnsAmongThoseThatServe) {
  Placement placement(stages(ReplicaPolicy::kRoundRobin));
  std::vector<std::size_t> seen;
  for (int i = 0; i < 6; ++i) seen.push_back(placement.begin(stage_bit(1), all)[1]);
  EXPECT_EQ(seen, (std::vector<std::size_t>{1, 2, 3, 1, 2, 3}));
  const auto without_1 = [](std::size_t slot) { return slot != 2; };
  seen.clear();
  for (int i = 0; i < 4; ++i) seen.push_back(placement.begin(stage_bit(1), without_1)[1]);
  EXPECT_EQ(seen, (std::vector<std::size_t>{1, 3, 1, 3}));
}

TEST(Placement, TheFewestRequestsWinAndAnEndMakesRoom) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  std::vector<Placement::Route> routes;
  for (int i = 0; i < 9; ++i) routes.push_back(placement.begin(stage_bit(1), all));
  for (uint32_t replica = 0; replica < 3; ++replica) EXPECT_EQ(placement.requests(1, replica), 3);
  for (const Placement::Route& route : routes) {
    if (route[1] == 3) placement.end(route);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(placement.begin(stage_bit(1), all)[1], 3u);
}

TEST(Placement, AStageThatNoneServesGetsItsFirstReplica) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  const auto none = [](std::size_t) { return false; };
  EXPECT_EQ(placement.begin(stage_bit(0) | stage_bit(1), none), (Placement::Route{0, 1, kNone}));
}

TEST(Placement, BooksBalanceWhateverHappens) {
  Placement placement(stages(ReplicaPolicy::kLeastRequests));
  std::vector<Placement::Route> live;
  uint64_t state = 7;
  const auto dice = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int round = 0; round < 5000; ++round) {
    const uint64_t draw = dice();
    if (draw % 2 == 0 || live.empty()) {
      live.push_back(placement.begin(draw % 8, [&](std::size_t slot) { return (draw >> slot & 1) != 0; }));
    } else {
      placement.end(live.back());
      live.pop_back();
    }
    for (std::size_t stage = 1; stage < 3; ++stage) {
      std::vector<int64_t> wanted(3);
      for (const Placement::Route& route : live) {
        if (route[stage] != kNone) ++wanted[route[stage] - kFirst[stage]];
      }
      for (uint32_t replica = 0; replica < (stage == 1 ? 3u : 2u); ++replica) {
        ASSERT_EQ(placement.requests(stage, replica), wanted[replica]);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
