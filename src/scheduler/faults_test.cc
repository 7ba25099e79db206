// Aborts, failures of the runner, the self-check, and the facts that a heartbeat tells.
#include <gtest/gtest.h>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::HashModel;
using testing::kRoomy;
using testing::prompt;
using wire::FinishReason;

// ---- abort ----------------------------------------------------------------------------------------------------------

// Invariants: an end is told at once; pages named by a batch in flight stay until it was polled.
TEST(Abort, IsToldAtOnceAndPagesStayUntilThePoll) {
  for (bool overlap : {false, true}) {
    SchedulerOptions options;
    options.overlap = overlap;
    Harness h(kRoomy, options, endless());
    h.runner.polls_per_step = 2;
    h.receive(Harness::request(1, prompt(40), 100));
    h.step();
    EXPECT_EQ(h.scheduler.facts().in_flight, overlap ? 2 : 1);
    const int32_t held = h.scheduler.facts().pages_held;
    EXPECT_EQ(held, 3);
    h.abort(1);
    h.abort(1);
    EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kAborted);
    EXPECT_TRUE(h.scheduler.busy());
    EXPECT_EQ(h.scheduler.facts().running, 0);
    EXPECT_EQ(h.scheduler.facts().pages_held, held);
    h.run();
    EXPECT_TRUE(h.outcomes.at(1).tokens.empty());
    EXPECT_EQ(h.scheduler.facts().wasted_rows, overlap ? 41u : 40u);
    h.abort(1);
    h.abort(12345);
    h.expect_clean_end();
  }
}

TEST(Abort, AtEveryMomentOfARequestsLife) {
  for (int moment = 0; moment < 40; ++moment) {
    SchedulerOptions options;
    options.chunked_prefill_tokens = 16;
    options.max_running_requests = 1;
    Harness h(kRoomy, options, endless());
    h.runner.polls_per_step = 1;
    h.receive(Harness::request(1, prompt(40), 4));
    h.receive(Harness::request(2, prompt(40, 9), 4));
    for (int i = 0; i < moment; ++i) h.step();
    h.abort(2);
    h.run();
    EXPECT_EQ(h.outcomes.at(1).tokens.size(), 4u);
    h.expect_clean_end();
  }
}

// As many aborts as may run, again and again, then service goes on.
TEST(Abort, StormsLeaveNothingBehind) {
  SchedulerOptions options;
  options.max_running_requests = 8;
  Harness h({1000, 256, 16, 40}, options, endless());
  uint64_t id = 0;
  for (int round = 0; round < 1250; ++round) {
    const uint64_t first = id + 1;
    for (int i = 0; i < 8; ++i) h.receive(Harness::request(++id, prompt(30, round + i * 40), 50));
    for (int i = 0; i < round % 5; ++i) h.step();
    for (uint64_t k = first; k <= id; ++k) h.abort(k);
    h.run();
  }
  EXPECT_EQ(h.scheduler.facts().ended, 10000u);
  h.receive(Harness::request(++id, prompt(30), 50));
  h.run();
  EXPECT_EQ(h.outcomes.at(id).tokens.size(), 50u);
  h.expect_clean_end();
}

TEST(Abort, OfAllEndsEachOnce) {
  SchedulerOptions options;
  options.max_running_requests = 2;
  Harness h(kRoomy, options, endless());
  h.runner.polls_per_step = 1;
  for (uint64_t id = 1; id <= 4; ++id) h.receive(Harness::request(id, prompt(4), 50));
  h.step();
  Scheduler::Deltas out;
  h.scheduler.pause(InFlightPolicy::kAbort, out);
  ASSERT_EQ(out.size(), 4u);  // at once, those in flight too
  while (h.scheduler.step(0, out)) {
  }
  ASSERT_EQ(out.size(), 4u);
  for (const wire::TokenDelta& delta : out) EXPECT_EQ(delta.finish->reason, wire::FinishReason::kAborted);
  EXPECT_EQ(h.scheduler.facts().pages_held, 0);
}

// ---- faults of the runner -------------------------------------------------------------------------------------------

TEST(Fault, ABadRowEndsItsRequestAlone) {
  Harness clean(kRoomy, {}, endless());
  Harness h(kRoomy, {}, endless());
  h.runner.fail_row = [](const SequenceStep& step) {
    return step.request == ReqId{2} && step.position > 22 ? internal_error("logits are not finite") : ok_status();
  };
  for (uint64_t id = 1; id <= 3; ++id) {
    clean.receive(Harness::request(id, prompt(20, static_cast<int32_t>(id)), 10));
    h.receive(Harness::request(id, prompt(20, static_cast<int32_t>(id)), 10));
  }
  clean.run();
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, clean.outcomes.at(1).tokens);
  EXPECT_EQ(h.outcomes.at(3).tokens, clean.outcomes.at(3).tokens);
  EXPECT_EQ(h.outcomes.at(2).finish->code, StatusCode::kInternal);
  EXPECT_EQ(h.outcomes.at(2).finish->message, "logits are not finite");
  h.expect_clean_end();
}

TEST(Fault, TheKvOfAFailedRowIsNotFoundByOthers) {
  Harness h(kRoomy, {}, endless());
  h.runner.fail_row = [](const SequenceStep& step) {
    return step.request == ReqId{1} ? internal_error("logits are not finite") : ok_status();
  };
  for (uint64_t id : {1, 2, 3}) {
    h.receive(Harness::request(id, prompt(40), 4));
    h.run();
  }
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 0);
  EXPECT_EQ(h.outcomes.at(3).usage.cached_tokens, 32);
  h.expect_clean_end();
}

TEST(Fault, ATokenOutsideTheVocabularyOrAMissingOneEndsTheRequest) {
  HashModel model = endless();
  Harness h(kRoomy, {}, model);
  h.runner.forget_row = [](const SequenceStep& step) { return step.request == ReqId{1}; };
  h.receive(Harness::request(1, prompt(4), 5));
  h.receive(Harness::request(2, prompt(4, 9), 5));
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->message, "the runner returned no token for this request");
  EXPECT_EQ(h.outcomes.at(2).tokens.size(), 5u);
  h.runner.model.vocab_size = INT32_MAX;  // a runner gone mad
  h.receive(Harness::request(3, prompt(4), 5));
  h.run();
  EXPECT_EQ(h.outcomes.at(3).finish->code, StatusCode::kInternal);
  EXPECT_NE(h.outcomes.at(3).finish->message.find("wanted 0..999"), std::string::npos);
  h.expect_clean_end();
}

TEST(Fault, AFailedOrRefusedStepEndsItsRequestsAndTheSchedulerLives) {
  for (bool refuse : {false, true}) {
    Harness h(kRoomy, {}, endless());
    const auto fault = [](const Batch& batch) {
      return batch.step == 3 ? internal_error("out of memory in a kernel") : ok_status();
    };
    (refuse ? h.runner.refuse : h.runner.fail_step) = fault;
    for (uint64_t id = 1; id <= 3; ++id) h.receive(Harness::request(id, prompt(20, static_cast<int32_t>(id)), 10));
    h.run();
    for (uint64_t id = 1; id <= 3; ++id) {
      EXPECT_EQ(h.outcomes.at(id).finish->code, StatusCode::kInternal);
      EXPECT_EQ(h.outcomes.at(id).finish->message, refuse ? "the step was refused: out of memory in a kernel"
                                                          : "the step failed: out of memory in a kernel");
    }
    h.receive(Harness::request(4, prompt(20), 10));
    h.run();
    EXPECT_EQ(h.outcomes.at(4).tokens.size(), 10u);
    h.expect_clean_end();
  }
}

TEST(Fault, AnAbortedRequestInAFailedStepIsAborted) {
  Harness h(kRoomy, {}, endless());
  h.runner.polls_per_step = 1;
  h.runner.fail_step = [](const Batch&) { return internal_error("broken"); };
  h.receive(Harness::request(1, prompt(4), 5));
  h.receive(Harness::request(2, prompt(4), 5));
  h.step();
  h.abort(1);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kAborted);
  EXPECT_EQ(h.outcomes.at(2).finish->reason, FinishReason::kError);
  h.expect_clean_end();
}

// ---- self-check -----------------------------------------------------------------------------------------------------

// Invariant: wrong books are counted, logged and rebuilt when idle; the scheduler never exits over them.
TEST(SelfCheck, ALostPageIsFoundWhenIdleAndTheBooksAreRebuilt) {
  testing::FakeRunner runner(kRoomy, endless());
  Scheduler scheduler({}, runner);
  std::vector<PageId> lost;
  ASSERT_TRUE(scheduler.memory_for_test().pool().allocate(3, lost));
  Scheduler::Deltas out;
  scheduler.receive(Harness::request(1, prompt(20), 5), out);
  while (scheduler.step(0, out)) {
  }
  EXPECT_EQ(scheduler.facts().book_rebuilds, 1u);
  EXPECT_EQ(scheduler.facts().pages_free, 256);
  EXPECT_EQ(out.back().finish->reason, FinishReason::kLength);
  scheduler.receive(Harness::request(2, prompt(20), 5), out);
  while (scheduler.step(0, out)) {
  }
  EXPECT_EQ(scheduler.facts().book_rebuilds, 1u);
  EXPECT_EQ(out.back().finish->reason, FinishReason::kLength);
}

TEST(StepFacts, CountStepsRunningWaitingAndPages) {
  SchedulerOptions options;
  options.max_running_requests = 1;
  Harness h(kRoomy, options, endless());
  h.receive(Harness::request(1, prompt(40), 10));
  h.receive(Harness::request(2, prompt(40, 50), 10));
  EXPECT_EQ(h.scheduler.facts().waiting, 2);
  h.step();
  const SchedulerFacts facts = h.scheduler.facts();
  EXPECT_EQ(facts.steps, 1u);
  EXPECT_EQ(facts.running, 1);
  EXPECT_EQ(facts.waiting, 1);
  EXPECT_EQ(facts.pages_total, 256);
  EXPECT_EQ(facts.pages_cached, 2);  // published when the prompt was done
  EXPECT_EQ(facts.pages_held, 1);
  EXPECT_EQ(facts.page_size, 16);
  h.run();
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
