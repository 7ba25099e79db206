// The front with several schedulers: who gets a request, who loses one when a scheduler dies, and when it is ready.
#include <gtest/gtest.h>

#include "stages/testing/front_harness.h"

namespace millrace {
namespace {

using testing::Heard;
using testing::kIncarnation;
using testing::sink_of;
using wire::FinishReason;
using wire::StageState;

class FrontReplicasTest : public testing::FrontHarness {
 protected:
  void start_replicas(ReplicaPolicy policy = ReplicaPolicy::kRoundRobin, int64_t restart_after_s = 0) {
    FrontOptions options;
    options.replicas = 2;
    options.replica_policy = policy;
    options.restart_after_s = restart_after_s;
    start(options, false);
    front_->connect_scheduler(second_, kIncarnation, 1);
    beat("detokenizer", StageState::kReady, kIncarnation);
    for (const char* name : {"scheduler-0", "scheduler-1"}) beat(name, StageState::kReady, kIncarnation);
    ASSERT_TRUE(testing::eventually([&] { return front_->health().reason.empty(); })) << front_->health().reason;
  }
  std::shared_ptr<Heard> submit(GenerateRequest request) {
    auto heard = std::make_shared<Heard>();
    const std::size_t before = scheduler_->request_count() + second_->request_count();
    front_->submit(std::move(request), sink_of(heard));
    EXPECT_TRUE(testing::eventually(
        [&] { return ended(*heard) || scheduler_->request_count() + second_->request_count() > before; }));
    return heard;
  }
  std::shared_ptr<testing::FakeScheduler> second_ = std::make_shared<testing::FakeScheduler>();
};

TEST_F(FrontReplicasTest, TakesTurnsAndAPinnedRequestGoesWhereItAsks) {
  start_replicas();
  for (int i = 0; i < 4; ++i) submit(request(2));
  EXPECT_EQ(scheduler_->request_count(), 2u);
  EXPECT_EQ(second_->request_count(), 2u);
  for (int i = 0; i < 3; ++i) {
    GenerateRequest pinned = request(2);
    pinned.replica = 1;
    submit(std::move(pinned));
  }
  EXPECT_EQ(second_->request_count(), 5u);
  GenerateRequest wrong = request(2);
  wrong.replica = 2;
  const wire::Finish end = end_of(std::move(wrong));
  EXPECT_EQ(end.code, StatusCode::kInvalidArgument);
  EXPECT_NE(end.message.find("0 to 1"), std::string::npos) << end.message;
}

TEST_F(FrontReplicasTest, ADeadReplicaEndsItsOwnRequestsAndTheOtherGetsTheNext) {
  start_replicas();
  auto first = submit(request(2)), other = submit(request(2));
  ASSERT_EQ(second_->request_count(), 1u);
  front_->stage_down("scheduler-1", "killed by signal 9 (KILL)");
  ASSERT_TRUE(testing::eventually([&] { return ended(*other); }));
  EXPECT_EQ(first_end(*other).code, StatusCode::kUnavailable);
  EXPECT_NE(first_end(*other).message.find("scheduler-1"), std::string::npos);
  EXPECT_FALSE(ended(*first));
  const Health health = front_->health();
  EXPECT_TRUE(health.ready);
  EXPECT_NE(health.reason.find("scheduler-1"), std::string::npos) << health.reason;
  for (int i = 0; i < 3; ++i) submit(request(2));
  EXPECT_EQ(scheduler_->request_count(), 4u);
  EXPECT_EQ(second_->request_count(), 1u);
  GenerateRequest pinned = request(2);
  pinned.replica = 1;
  EXPECT_EQ(end_of(std::move(pinned)).code, StatusCode::kUnavailable);

  // It comes back, and gets its turn again.
  front_->connect_scheduler(second_, kIncarnation + 1, 1);
  beat("scheduler-1", StageState::kReady, kIncarnation);  // late news of the dead one
  beat("scheduler-1", StageState::kReady, kIncarnation + 1);
  ASSERT_TRUE(testing::eventually([&] { return front_->health().reason.empty(); }));
  for (int i = 0; i < 4; ++i) submit(request(2));
  EXPECT_EQ(second_->request_count(), 3u);

  front_->stage_down("scheduler-0", "gone");
  front_->stage_down("scheduler-1", "gone");
  EXPECT_FALSE(front_->health().ready);
  EXPECT_EQ(front_->live_requests(), 0u);
}

TEST_F(FrontReplicasTest, ADeadDetokenizerEndsAll) {
  start_replicas();
  auto first = submit(request(2)), other = submit(request(2));
  front_->stage_down("detokenizer", "exit code 1");
  EXPECT_TRUE(testing::eventually([&] { return ended(*first) && ended(*other); }));
  EXPECT_FALSE(front_->health().ready);
}

TEST_F(FrontReplicasTest, AnAbortGoesToTheSchedulerThatHasTheRequest) {
  start_replicas();
  GenerateRequest pinned = request(2);
  pinned.replica = 1;
  auto heard = std::make_shared<Heard>();
  const ReqId id = front_->submit(std::move(pinned), sink_of(heard));
  ASSERT_TRUE(testing::eventually([&] { return second_->request_count() == 1; }));
  front_->abort(id);
  EXPECT_EQ(second_->aborts(), std::vector<ReqId>{id});
  EXPECT_TRUE(scheduler_->aborts().empty());
}

TEST_F(FrontReplicasTest, LoadIsCountedWhileARequestLivesAndNotAfter) {
  start_replicas(ReplicaPolicy::kLeastTokens);
  submit(request(8));  // one gets eight tokens
  submit(request(2));  // the other two
  const bool to_first = scheduler_->requests()[0].prompt.size() == 8;
  auto& light = to_first ? *second_ : *scheduler_;
  submit(request(3));
  ASSERT_EQ(light.request_count(), 2u);
  // Its texts grow beyond the other's: the next one goes there.
  wire::TextDelta grown{.id = light.request_id(0)};
  grown.usage.completion_tokens = 9;
  deliver(std::move(grown));
  auto& heavy = to_first ? *scheduler_ : *second_;
  ASSERT_TRUE(testing::eventually([&] {
    auto heard = submit(request(1));
    return heavy.request_count() == 2;
  }));
  // Both of the light one end: it is the emptier again.
  for (std::size_t i = 0; i < light.request_count(); ++i) {
    wire::TextDelta end{.id = light.request_id(i)};
    end.finish = wire::Finish{};
    deliver(std::move(end));
  }
  ASSERT_TRUE(testing::eventually([&] { return front_->live_requests() == heavy.request_count(); }));
  const std::size_t before = light.request_count();
  submit(request(1));
  EXPECT_EQ(light.request_count(), before + 1);
}

TEST_F(FrontReplicasTest, AStalledReplicaGetsNothingNewAndIsReportedOnceWhenItHangs) {
  std::mutex mutex;
  std::vector<std::string> hung;
  start_replicas(ReplicaPolicy::kRoundRobin, 1);
  front_->on_hung([&](const std::string& stage, uint64_t incarnation, const std::string& how) {
    std::lock_guard lock(mutex);
    EXPECT_EQ(incarnation, kIncarnation);
    hung.push_back(stage + " " + how);
  });
  const auto reports = [&] {
    std::lock_guard lock(mutex);
    return hung.size();
  };
  const auto keep_beating = [&] {
    beat("scheduler-1", StageState::kStalled, kIncarnation, "no progress for 1600 ms");
    beat("scheduler-0", StageState::kReady, kIncarnation);
    beat("detokenizer", StageState::kReady, kIncarnation);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  keep_beating();
  ASSERT_TRUE(testing::eventually([&] { return front_->health().reason.find("stalled") != std::string::npos; }));
  for (int i = 0; i < 4; ++i) submit(request(2));
  EXPECT_EQ(second_->request_count(), 0u);
  const int64_t begin_ms = monotonic_ms();
  while (reports() == 0 && monotonic_ms() - begin_ms < 10'000) keep_beating();
  EXPECT_GE(monotonic_ms() - begin_ms, 500);
  for (int i = 0; i < 10; ++i) keep_beating();
  std::lock_guard lock(mutex);
  ASSERT_EQ(hung.size(), 1u);
  EXPECT_EQ(hung[0].rfind("scheduler-1 stalled", 0), 0u) << hung[0];
}

TEST_F(FrontReplicasTest, WhoWasReadyOnceIsKnownWhateverComesAfter) {
  start_replicas(ReplicaPolicy::kRoundRobin, 1);
  front_->expect_stage("another", kIncarnation);
  beat("another", StageState::kLoading, kIncarnation);
  beat("another", StageState::kReady, kIncarnation + 1);  // of nobody who is expected
  EXPECT_TRUE(testing::eventually([&] { return front_->was_ready("scheduler-1"); }));
  front_->stage_down("scheduler-1", "killed");
  front_->connect_scheduler(second_, kIncarnation + 1, 1);
  beat("scheduler-1", StageState::kFailed, kIncarnation + 1);
  EXPECT_TRUE(front_->was_ready("scheduler-1"));
  EXPECT_FALSE(front_->was_ready("another"));
}

}  // namespace
}  // namespace millrace
