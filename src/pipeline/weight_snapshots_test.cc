// Snapshots of weights that a trainer sent, written by replicas that a test plays.
#include "pipeline/weight_snapshots.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/log.h"

namespace millrace {
namespace {

class WeightSnapshotsTest : public ::testing::Test {
 protected:
  WeightSnapshotsTest() { log_init("test", LogLevel::kOff); }

  struct Asked {
    PipelineCommand command;
    AdminCommands::Done done;
  };
  // The replica that was asked first.
  uint32_t answer(StatusCode code, const std::string& message) {
    if (asked_.empty()) {
      ADD_FAILURE() << "nothing is asked";
      return 99;
    }
    const Asked asked = std::move(asked_.front());
    asked_.pop_front();
    EXPECT_EQ(asked.command.action, wire::AdminAction::kWriteWeights);
    EXPECT_EQ(asked.command.stages, std::vector<std::string>{"generate"});
    asked.done({{.stage = "generate", .code = code, .message = message}});
    return asked.command.replica.value_or(98);
  }

  std::deque<Asked> asked_;
  std::vector<std::pair<uint64_t, std::string>> kept_;
  WeightSnapshots snapshots_{
      {"generate"},
      2,
      {.command =
           [this](PipelineCommand command, AdminCommands::Done done) {
             asked_.push_back({std::move(command), std::move(done)});
           },
       .kept = [this](uint64_t version, const std::string& path) { kept_.emplace_back(version, path); }}};
};

TEST_F(WeightSnapshotsTest, OneReplicaWritesWhatServes) {
  snapshots_.tick(1);
  EXPECT_TRUE(asked_.empty());
  snapshots_.want(5, "label-5");
  EXPECT_TRUE(snapshots_.may_come(5) && !snapshots_.may_come(4));
  snapshots_.tick(2);
  snapshots_.tick(3);
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].command.weight_version, 5u);
  EXPECT_EQ(asked_[0].command.argument, "label-5");
  EXPECT_EQ(answer(StatusCode::kOk, "/s/5"), 0u);
  EXPECT_EQ(kept_, (std::vector<std::pair<uint64_t, std::string>>{{5, "/s/5"}}));
  EXPECT_TRUE(snapshots_.state().version == 5 && snapshots_.state().path == "/s/5");
  snapshots_.tick(4);
  EXPECT_TRUE(asked_.empty() && !snapshots_.may_come(5));
}

TEST_F(WeightSnapshotsTest, AFailureIsTriedAgainOnTheNextReplicaSoManyTimes) {
  snapshots_.want(5, "label-5");
  int64_t now = 0;
  for (int i = 0; i < kSnapshotTries; ++i) {
    snapshots_.tick(now);
    EXPECT_EQ(answer(StatusCode::kUnavailable, "killed"), static_cast<uint32_t>(i % 2));
    EXPECT_NE(snapshots_.state().error.find("killed"), std::string::npos);
    snapshots_.tick(now + kSnapshotFirstMs - 1);
    EXPECT_TRUE(asked_.empty());
    now += kSnapshotMaxMs;
  }
  snapshots_.tick(now + kSnapshotMaxMs);
  EXPECT_TRUE(asked_.empty() && kept_.empty() && !snapshots_.may_come(5));
  snapshots_.want(6, "label-6");  // newer weights begin anew
  EXPECT_TRUE(snapshots_.state().error.empty());
  snapshots_.tick(now + kSnapshotMaxMs);
  EXPECT_EQ(answer(StatusCode::kOk, "/s/6"), 0u);
}

TEST_F(WeightSnapshotsTest, NewerWeightsCount) {
  snapshots_.want(5, "label-5");
  snapshots_.tick(0);
  snapshots_.want(6, "label-6");
  snapshots_.tick(1);
  ASSERT_EQ(asked_.size(), 2u);
  answer(StatusCode::kCancelled, "given up");
  EXPECT_TRUE(snapshots_.state().error.empty());
  snapshots_.tick(2);
  EXPECT_EQ(asked_.size(), 1u);
  answer(StatusCode::kOk, "/s/6");
  snapshots_.want(7, "label-7");
  snapshots_.tick(3);
  snapshots_.drop();  // weights of a folder serve
  answer(StatusCode::kOk, "/s/7");
  EXPECT_EQ(kept_, (std::vector<std::pair<uint64_t, std::string>>{{6, "/s/6"}}));
}

TEST_F(WeightSnapshotsTest, WithoutAFolderNoneIsAskedAgain) {
  snapshots_.want(5, "label-5");
  snapshots_.tick(0);
  answer(StatusCode::kUnsupported, "--weights-snapshot-dir is not set");
  snapshots_.want(6, "label-6");
  snapshots_.tick(kSnapshotMaxMs);
  EXPECT_TRUE(asked_.empty() && snapshots_.state().error.empty() && !snapshots_.may_come(6));
}

}  // namespace
}  // namespace millrace
