// Requests on which a lost message has left no stage to work: the coordinator asks, and concludes from the answers.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/testing/coordinator_harness.h"

namespace millrace::testing {
namespace {

using State = wire::StageRequestState;

// "prepare" -> "think" -> "decode": what each reports of a request, or nothing where it is not in `reports`.
class LostRequestsTest : public CoordinatorHarness {
 protected:
  // So many rounds, in which the stages answer; `deaf` does not.
  void rounds(int count, const std::string& deaf = "") {
    for (int round = 0; round < count; ++round) {
      pass(kRequestProbeMs);
      for (const ReplicaView& replica : core->members().replicas()) {
        const auto probes = box(replica.stage, replica.replica).take<wire::RequestProbe>();
        for (const wire::RequestProbe& probe : probes) {
          EXPECT_EQ(probe.from.session, kSession);
          asked += static_cast<int>(probe.ids.size());
          if (replica.stage != deaf) core->handle(answer(probe, replica), now);
        }
      }
    }
  }
  wire::RequestReport answer(const wire::RequestProbe& probe, const ReplicaView& replica) {
    wire::RequestReport report{.from = from(replica.stage, replica.replica), .round = probe.round};
    for (const ReqId id : probe.ids) {
      auto found = reports.find(replica.stage);
      if (found == reports.end()) continue;
      found->second.id = id;
      report.requests.push_back(found->second);
    }
    return report;
  }
  void expect_lost(const Client& client, const std::string& why) const {
    ASSERT_EQ(client.ends, 1);
    EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(client.end.status.message(), "a message was lost between the stages: " + why);
    EXPECT_EQ(core->books().lost, 1u);
  }
  // Quiet time, and the round that only asks.
  static constexpr int kBefore = static_cast<int>(kQuietMs / kRequestProbeMs) + 1;

  std::map<std::string, wire::StageRequest> reports;
  int asked = 0;
  Client client;
  const SubmitOptions text{.terminals = std::vector<std::string>{"decode"}};
};

TEST_F(LostRequestsTest, ALostSubmitFailsItsRequestWithinSeconds) {
  submit(client, text);
  rounds(kBefore + kLostRounds - 1);
  EXPECT_EQ(client.ends, 0);  // a message may be on its way for a while
  rounds(2);
  expect_lost(client, "no stage works on the request");
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(LostRequestsTest, NoStageIsAskedWhileAnAnswerComes) {
  const ReqId id = submit(client, text);
  for (uint64_t seq = 0; seq < 20; ++seq) {
    rounds(1);
    chunk(id, "decode", seq, in_tree(Value("x")));
  }
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(client.ends, 0);
}

TEST_F(LostRequestsTest, WorkThatTakesLongIsNoLoss) {
  submit(client, text);
  reports["think"] = {.state = State::kWorking, .sources = {"prepare"}};
  reports["prepare"] = {.state = State::kFinished};
  rounds(40);
  EXPECT_GT(asked, 0);
  EXPECT_EQ(client.ends, 0);
}

// What "prepare" has sent is lost, and it is done.
TEST_F(LostRequestsTest, ALostResultOfAStageThatIsDoneIsFound) {
  submit(client, text);
  reports["prepare"] = {.state = State::kFinished};
  rounds(kBefore + kLostRounds + 1);
  expect_lost(client, "no stage works on the request");
}

// One waits for what is lost.
TEST_F(LostRequestsTest, AStageThatWaitsDoesNotWork) {
  submit(client);
  reports["prepare"] = {.state = State::kFinished};
  reports["tone"] = {.state = State::kWaiting, .sources = {"talk"}};
  rounds(kBefore + kLostRounds + 1);
  expect_lost(client, "no stage works on the request");
}

// Its Failure is lost, while another stage goes on.
TEST_F(LostRequestsTest, ALostFailureIsFound) {
  submit(client);
  reports["think"] = {.state = State::kFailed};
  reports["tone"] = {.state = State::kWorking, .sources = {"talk"}};
  rounds(kBefore + kLostRounds + 1);
  expect_lost(client, "'think' has failed");
}

// "think" computes, until its window is full; its first chunks are lost.
TEST_F(LostRequestsTest, AStreamThatNeverArrivesIsFoundWhileItsSenderWorks) {
  submit(client, text);
  reports["think"] = {.state = State::kWorking, .sources = {"prepare"}, .targets = {"decode"}};
  rounds(kBefore + kLostRounds + 1);
  expect_lost(client, "'think' has sent to 'decode', where nothing has come");
}

TEST_F(LostRequestsTest, AStreamThatArrivedIsNone) {
  submit(client, text);
  reports["think"] = {.state = State::kWorking, .sources = {"prepare"}, .targets = {"decode"}};
  reports["decode"] = {.state = State::kWaiting, .sources = {"think"}};
  rounds(20);
  EXPECT_EQ(client.ends, 0);
  reports["decode"] = {.state = State::kFinished};  // its result is on its way
  rounds(20);
  EXPECT_EQ(client.ends, 0);
}

// From another one it has something, from this one nothing.
TEST_F(LostRequestsTest, WhatCameFromAnotherStageIsNoProof) {
  submit(client, text);
  reports["think"] = {.state = State::kWorking, .targets = {"decode"}};
  reports["decode"] = {.state = State::kWorking, .sources = {"talk"}};
  rounds(kBefore + kLostRounds + 1);
  expect_lost(client, "'think' has sent to 'decode', where nothing has come");
}

TEST_F(LostRequestsTest, ARoundWithoutAllAnswersProvesNothing) {
  submit(client, text);
  rounds(50, "think");
  EXPECT_EQ(client.ends, 0);
  rounds(kLostRounds + 1);
  EXPECT_EQ(client.ends, 1);
}

TEST_F(LostRequestsTest, AReportOfAnotherRoundIsIgnored) {
  const ReqId id = submit(client, text);
  rounds(kBefore + kLostRounds - 1);
  wire::RequestReport old{.from = from("think", thinker_of(id)), .round = 1};
  old.requests = {{.id = id, .state = State::kWorking}};
  core->handle(old, now);
  rounds(2);
  EXPECT_EQ(client.ends, 1);
}

TEST_F(LostRequestsTest, AChunkInBetweenClearsTheSuspicion) {
  const ReqId id = submit(client, text);
  rounds(kBefore + kLostRounds - 1);
  chunk(id, "decode", 0, in_tree(Value("late")));
  rounds(kBefore + kLostRounds - 1);
  EXPECT_EQ(client.ends, 0);
  rounds(2);
  EXPECT_EQ(client.ends, 1);
}

// The whole answer is here, and its client does not read it: no stage is asked for anything.
TEST_F(LostRequestsTest, AClientThatDoesNotReadIsNoLoss) {
  const ReqId id = submit(client, text);
  client.full = true;
  chunk(id, "decode", 0, in_tree(Value("x")));
  complete(id, "decode", in_tree(Value("end")), 1);
  rounds(40);
  EXPECT_EQ(client.ends, 0);
  EXPECT_EQ(asked, 0);
  client.full = false;
  core->tick(now);
  EXPECT_TRUE(client.end.status.ok());
}

TEST_F(LostRequestsTest, ARequestThatHasNotBegunIsNotAskedAbout) {
  core->hold(true);
  submit(client, text);
  rounds(20);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(client.ends, 0);
}

}  // namespace
}  // namespace millrace::testing
