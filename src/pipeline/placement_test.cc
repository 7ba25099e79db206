// Placement: serving replicas by the stage's policy, and books that balance.
#include "pipeline/placement.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

constexpr std::size_t kNone = Placement::kNone;
const StageSet kThree = stage_bit(1);

// Three terminals. "one" has slot 0, "three" has slots 1 to 3, "two" has 4 and 5. All serve at first.
class PlacementTest : public ::testing::Test {
 protected:
  void make(ReplicaPolicy policy) {
    spec_.entry = "one";
    spec_.stages = {{.name = "one", .terminal = true},
                    {.name = "three", .terminal = true, .replicas = 3, .replica_policy = policy},
                    {.name = "two", .terminal = true, .replicas = 2}};
    graph_.emplace(spec_.stages, spec_.entry);
    members_.emplace(spec_, MembershipOptions{.session = 1}, 0);
    placement_.emplace(spec_, *graph_, *members_);
    for (std::size_t slot = 0; slot < members_->replicas().size(); ++slot) {
      const ReplicaView& view = members_->replicas()[slot];
      wire::Register message{.reply_to = view.name};
      message.self = {.stage = view.stage, .replica = view.replica, .incarnation = 1};
      members_->handle(message, 0);
      set_serving(slot, true);
    }
  }
  void set_serving(std::size_t slot, bool serves) {
    const ReplicaView& view = members_->replicas()[slot];
    wire::StageStatus status{.stage = view.stage, .incarnation = 1, .replica = view.replica};
    status.state = serves ? wire::StageState::kReady : wire::StageState::kLoading;
    members_->handle(status, 0);
  }
  std::vector<std::size_t> next_of_three(int count) {
    std::vector<std::size_t> out;
    for (int i = 0; i < count; ++i) out.push_back(placement_->begin(stage_bit(1))[1]);
    return out;
  }

  PipelineSpec spec_;
  std::optional<StageGraph> graph_;
  std::optional<Membership> members_;
  std::optional<Placement> placement_;
};

TEST_F(PlacementTest, OnlyTheStagesOfTheRequestAreInItsRoute) {
  make(ReplicaPolicy::kRoundRobin);
  EXPECT_EQ(placement_->begin(stage_bit(0)), (Placement::Route{0, kNone, kNone}));
  EXPECT_EQ(placement_->begin(stage_bit(1) | stage_bit(2)), (Placement::Route{kNone, 1, 4}));
  EXPECT_EQ(placement_->begin(0), (Placement::Route{kNone, kNone, kNone}));
}

TEST_F(PlacementTest, RoundRobinTakesTurnsAmongThoseThatServe) {
  make(ReplicaPolicy::kRoundRobin);
  EXPECT_EQ(next_of_three(6), (std::vector<std::size_t>{1, 2, 3, 1, 2, 3}));
  set_serving(2, false);
  EXPECT_EQ(next_of_three(4), (std::vector<std::size_t>{1, 3, 1, 3}));
}

TEST_F(PlacementTest, TheFewestRequestsWinAndAnEndFreesItsReplica) {
  make(ReplicaPolicy::kLeastRequests);
  std::vector<Placement::Route> routes;
  for (int i = 0; i < 9; ++i) routes.push_back(placement_->begin(stage_bit(1)));
  for (std::size_t slot = 1; slot < 4; ++slot) EXPECT_EQ(placement_->requests(slot), 3);
  for (const Placement::Route& route : routes) {
    if (route[1] == 3) placement_->end(route);
  }
  EXPECT_EQ(next_of_three(3), (std::vector<std::size_t>{3, 3, 3}));
}

TEST_F(PlacementTest, AStageThatNoneServesGetsItsFirstReplica) {
  make(ReplicaPolicy::kLeastRequests);
  for (std::size_t slot = 0; slot < 4; ++slot) set_serving(slot, false);
  EXPECT_EQ(placement_->begin(stage_bit(0) | stage_bit(1)), (Placement::Route{0, 1, kNone}));
  EXPECT_EQ(placement_->why_missing(stage_bit(1)), "three-0: loading 0%");
  EXPECT_EQ(placement_->why_missing(stage_bit(2)), "");
}

TEST_F(PlacementTest, AReplicaThatIsAskedForMustServe) {
  make(ReplicaPolicy::kLeastRequests);
  EXPECT_EQ(placement_->begin(stage_bit(1), {.replica = 2})[1], 3u);
  members_->down("three", 2, 1, "killed", 0);
  EXPECT_EQ(placement_->check_hint({.replica = 2}, kThree).message(),
            "the requested replica does not serve: three-2: killed");
  EXPECT_TRUE(placement_->check_hint({.replica = 1}, kThree).ok());
  EXPECT_TRUE(placement_->check_hint({}, kThree).ok());
}

// As the replicas that compute prompts for others.
TEST_F(PlacementTest, AReplicaOfAStageThatTheRequestDoesNotNeedMayBeDown) {
  make(ReplicaPolicy::kLeastRequests);
  members_->down("two", 1, 1, "killed", 0);
  EXPECT_TRUE(placement_->check_hint({.replica = 1}, kThree).ok());
  EXPECT_EQ(placement_->check_hint({.replica = 1}, kThree | stage_bit(2)).code(), StatusCode::kUnavailable);
}

TEST_F(PlacementTest, AReplicaWithOtherWeightsIsNotAskedEvenByNumber) {
  make(ReplicaPolicy::kLeastRequests);
  members_->require_weights({"three"}, {.version = 2});
  for (const uint32_t replica : {0u, 1u}) {
    members_->handle(wire::StageStatus{.stage = "three",
                                       .incarnation = 1,
                                       .state = wire::StageState::kReady,
                                       .weight_version = 2 - replica,
                                       .replica = replica},
                     0);
  }
  EXPECT_TRUE(placement_->check_hint({.replica = 0}, kThree).ok());
  EXPECT_EQ(placement_->check_hint({.replica = 1}, kThree).code(), StatusCode::kUnavailable);
  EXPECT_NE(placement_->check_hint({.replica = 1}, kThree).message().find("three-1: stale"), std::string::npos);
}

TEST_F(PlacementTest, AStageThatMayHaveOtherWeightsIsNotTakenForOneThatIsMissing) {
  make(ReplicaPolicy::kLeastRequests);
  set_serving(0, false);
  EXPECT_EQ(placement_->why_stale(stage_bit(0)), "");  // it may be back in time
  set_serving(0, true);
  members_->require_weights({"one"}, {.version = 2});
  EXPECT_NE(placement_->why_stale(stage_bit(0) | stage_bit(1)).find("one: stale"), std::string::npos);
  EXPECT_EQ(placement_->why_stale(stage_bit(1)), "");
  members_->down("one", 0, 1, "killed", 0);
  EXPECT_EQ(placement_->why_stale(stage_bit(0)), "one: killed");
}

TEST_F(PlacementTest, BooksBalanceWhateverHappens) {
  make(ReplicaPolicy::kLeastRequests);
  std::vector<Placement::Route> live;
  uint64_t state = 7;
  const auto dice = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int round = 0; round < 5000; ++round) {
    const uint64_t draw = dice();
    if (draw % 2 == 0 || live.empty()) {
      set_serving(draw / 8 % 6, (draw >> 10 & 1) != 0);
      live.push_back(placement_->begin(draw % 8));
    } else {
      placement_->end(live.back());
      live.pop_back();
    }
    std::vector<int64_t> wanted(6);
    for (const Placement::Route& route : live) {
      for (std::size_t stage = 1; stage < 3; ++stage) {
        if (route[stage] != kNone) ++wanted[route[stage]];
      }
    }
    for (std::size_t slot = 1; slot < 6; ++slot) ASSERT_EQ(placement_->requests(slot), wanted[slot]);
  }
}

}  // namespace
}  // namespace millrace
