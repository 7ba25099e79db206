// What a command that several replicas answer ends with: the reason of those that failed, and their names.
#include "pipeline/admin_replies.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

wire::AdminReply reply(std::string stage, StatusCode code, std::string message) {
  return {.stage = std::move(stage), .code = code, .message = std::move(message)};
}

TEST(FirstFailure, AReasonThatReplicasShareIsReportedOnce) {
  const Status status = first_failure({reply("scheduler-0", StatusCode::kInvalidArgument, "/w is no folder"),
                                       reply("scheduler-1", StatusCode::kInvalidArgument, "/w is no folder"),
                                       reply("scheduler-2", StatusCode::kDeadline, "did not answer within 10 ms")});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "scheduler-0, scheduler-1: /w is no folder; scheduler-2: did not answer within 10 ms");
}

TEST(FirstFailure, TheOneThatFailedIsNamedNotThoseThatWereCancelled) {
  const Status status = first_failure({reply("a", StatusCode::kCancelled, "was not waited for: b: no memory"),
                                       reply("b", StatusCode::kResourceExhausted, "no memory")});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "b: no memory");
  EXPECT_EQ(first_failure({reply("a", StatusCode::kCancelled, "ended")}).message(), "a: ended");
}

TEST(FirstFailure, AReplicaThatIsGoneMayBeMissingWhereAnotherHasDoneIt) {
  const wire::AdminReply done = reply("a", StatusCode::kOk, ""),
                         gone = reply("b", StatusCode::kUnavailable, "starting");
  EXPECT_TRUE(first_failure({done, gone}).ok());
  EXPECT_EQ(first_failure({done, gone}, 2).message(), "b: starting");  // both are wanted
  EXPECT_EQ(first_failure({gone}).message(), "b: starting");
  EXPECT_EQ(first_failure({}).message(), "no stage replied");
}

TEST(FirstFailure, NoMoreReplicasAreNamedThanAMessageHolds) {
  std::vector<wire::AdminReply> replies;
  for (int i = 0; i < 1000; ++i) replies.push_back(reply("scheduler", StatusCode::kInternal, std::to_string(i)));
  EXPECT_LT(first_failure(replies).message().size(), 5000u);
}

}  // namespace
}  // namespace millrace
