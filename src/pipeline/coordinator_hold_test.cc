// Requests that a coordinator holds back.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipeline/testing/coordinator_harness.h"

namespace millrace::testing {
namespace {

const std::vector<std::string> kDecodeAlone = {"decode"};

using CoordinatorHold = CoordinatorHarness;

TEST_F(CoordinatorHold, WhileItHoldsWhatRunsEndsAndNothingBegins) {
  Client runs, waits, late;
  const ReqId running = submit(runs, {.terminals = kDecodeAlone});
  box("prepare").take<wire::Submit>();
  core->hold(true);
  const ReqId held = submit(waits, {.terminals = kDecodeAlone});
  submit(late, {.terminals = kDecodeAlone, .timeout_ms = 100});
  pass(250);
  EXPECT_EQ(late.end.status.code(), StatusCode::kDeadline);  // its time goes on
  EXPECT_EQ(core->running(), 1u);
  EXPECT_EQ(core->books().pending, 1u);
  complete(running, "decode", in_tree(Value("text")));
  EXPECT_EQ(runs.ends, 1);
  EXPECT_EQ(core->running(), 0u);
  EXPECT_TRUE(box("prepare").take<wire::Submit>().empty());
  core->hold(false);
  core->tick(now);
  EXPECT_EQ(core->running(), 1u);
  EXPECT_EQ(box("prepare").take<wire::Submit>().size(), 1u);
  complete(held, "decode", in_tree(Value("text")));
  EXPECT_EQ(waits.ends, 1);
  expect_quiet();
}

}  // namespace
}  // namespace millrace::testing
