// What is accepted, when it stops, how the budget is shared, which requests are admitted and which retracted.
#include <gtest/gtest.h>

#include <cmath>

#include "scheduler/stop.h"
#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::HashModel;
using testing::kRoomy;
using testing::prompt;
using wire::FinishReason;

std::string rejection(Harness& h, uint64_t id, StatusCode code) {
  const auto& outcome = h.outcomes.at(id);
  EXPECT_FALSE(outcome.accepted);
  EXPECT_EQ(outcome.finish->reason, FinishReason::kError);
  EXPECT_EQ(outcome.finish->code, code) << status_code_name(outcome.finish->code);
  return outcome.finish->message;
}

// ---- receive --------------------------------------------------------------------------------------------------------

TEST(Receive, WhatCanNeverRunIsRejectedWithBothNumbers) {
  Harness h({1000, 64, 16, 3}, {});
  h.receive(Harness::request(1, {}, 5));
  EXPECT_EQ(rejection(h, 1, StatusCode::kInvalidArgument), "the prompt has 0 tokens; wanted at least 1");
  h.receive(Harness::request(2, prompt(64), 5));
  EXPECT_EQ(
      rejection(h, 2, StatusCode::kTooLarge),
      "This model's maximum context length is 49 tokens. However, the prompt has 64 tokens. The KV cache holds 48 "
      "tokens.");
  h.receive(Harness::request(3, prompt(49), 5));
  EXPECT_EQ(
      rejection(h, 3, StatusCode::kTooLarge),
      "This model's maximum context length is 49 tokens. However, the prompt has 49 tokens. The KV cache holds 48 "
      "tokens.");
  h.receive(Harness::request(4, {1, 1000, 2}, 5));
  EXPECT_EQ(rejection(h, 4, StatusCode::kInvalidArgument), "prompt token 1 is 1000; wanted 0..999");
  h.receive(Harness::request(5, {-1}, 5));
  EXPECT_EQ(rejection(h, 5, StatusCode::kInvalidArgument), "prompt token 0 is -1; wanted 0..999");
  h.receive(Harness::request(6, {1}, -1));
  EXPECT_EQ(rejection(h, 6, StatusCode::kInvalidArgument), "max_tokens is -1; wanted an integer >= 0");
  EXPECT_EQ(h.scheduler.facts().rejected, 6u);
  EXPECT_FALSE(h.step());
  h.expect_clean_end();
}

TEST(Receive, TheLargestPromptsThatFitAreServed) {
  Harness h({1000, 64, 16, 4}, {}, endless());
  h.receive(Harness::request(2, prompt(64), 5));
  EXPECT_EQ(rejection(h, 2, StatusCode::kTooLarge),
            "This model's maximum context length is 64 tokens. However, the prompt has 64 tokens.");
  h.receive(Harness::request(1, prompt(63), 5));
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 1u);  // the context is full
  EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kLength);
  h.expect_clean_end();
}

TEST(Receive, AFullQueueSaysSoAndIsNotTheEnd) {
  SchedulerOptions options;
  options.max_queued_requests = 2;
  options.max_running_requests = 1;
  Harness h(kRoomy, options, endless());
  for (uint64_t id = 1; id <= 4; ++id) h.receive(Harness::request(id, prompt(4), 3));  // one runs with the next step
  EXPECT_EQ(rejection(h, 4, StatusCode::kResourceExhausted),
            "0 requests run and 3 wait; the limits are 1 and 2; try again later");
  h.step();
  h.receive(Harness::request(5, prompt(4), 3));
  EXPECT_EQ(rejection(h, 5, StatusCode::kResourceExhausted),
            "1 requests run and 2 wait; the limits are 1 and 2; try again later");
  h.run();
  for (uint64_t id : {1, 2, 3}) EXPECT_EQ(h.outcomes.at(id).tokens.size(), 3u);
  h.receive(Harness::request(6, prompt(4), 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(6).tokens.size(), 3u);
  h.expect_clean_end();
}

TEST(Receive, ALiveIdThatComesAgainEndsOnceForBoth) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(7, prompt(4), 100));
  h.step();
  h.receive(Harness::request(7, prompt(9), 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(7).finish->code, StatusCode::kConflict);
  EXPECT_EQ(h.outcomes.at(7).finish->message, "request id 7 came twice; both requests end");
  h.expect_clean_end();
}

TEST(Options, AreValidatedWithNameAndValue) {
  EXPECT_TRUE(Scheduler::validate({}).ok());
  SchedulerOptions options;
  options.chunked_prefill_tokens = 0;
  EXPECT_EQ(Scheduler::validate(options).message(), "chunked_prefill_tokens is 0; wanted an integer >= 1");
  for (double wrong : {-0.1, 10.5, std::nan(""), HUGE_VAL}) {
    options = {};
    options.conservativeness = wrong;
    EXPECT_FALSE(Scheduler::validate(options).ok()) << wrong;
  }
  options = {};
  options.max_skips = -1;
  EXPECT_FALSE(Scheduler::validate(options).ok());
}

// ---- stop -----------------------------------------------------------------------------------------------------------

struct StopCase {
  const char* name;
  int32_t last_token;
  int32_t max_tokens;  // three tokens have been generated
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos;
  int32_t context_length;
  std::optional<FinishReason> expected;
};

TEST(Stop, ChecksInTheDocumentedOrder) {
  constexpr int32_t kEos = 2;
  const StopCase cases[] = {
      {"nothing", 50, 10, {}, false, 100, std::nullopt},
      {"the end token", kEos, 10, {}, false, 100, FinishReason::kStop},
      {"the end token is ignored", kEos, 10, {}, true, 100, std::nullopt},
      {"a stop id", 50, 10, {49, 50}, false, 100, FinishReason::kStop},
      {"stop ids stop in spite of ignore_eos", 50, 10, {50}, true, 100, FinishReason::kStop},
      {"an end token named as a stop id too", kEos, 10, {kEos}, true, 100, FinishReason::kStop},
      {"max_tokens", 50, 3, {}, false, 100, FinishReason::kLength},
      {"the context", 50, 10, {}, false, 5, FinishReason::kLength},
      {"a stop wins over max_tokens", kEos, 3, {}, false, 100, FinishReason::kStop},
      {"a stop id wins over the context", 50, 10, {50}, false, 5, FinishReason::kStop},
      {"an ignored end token is a token like others", kEos, 3, {}, true, 100, FinishReason::kLength},
  };
  for (const StopCase& c : cases) {
    Sequence sequence;
    sequence.prompt_length = 2;
    sequence.tokens = {7, 8, 9, 10, c.last_token};
    sequence.sampling.max_tokens = c.max_tokens;
    sequence.sampling.stop_token_ids = c.stop_token_ids;
    sequence.sampling.ignore_eos = c.ignore_eos;
    const int32_t eos[] = {kEos, 3};
    const std::optional<wire::Finish> end = stop_after(sequence, eos, c.context_length);
    ASSERT_EQ(end.has_value(), c.expected.has_value()) << c.name;
    if (!end) continue;
    EXPECT_EQ(end->reason, *c.expected) << c.name;
    EXPECT_EQ(end->matched_token.has_value(), *c.expected == FinishReason::kStop) << c.name;
  }
}

TEST(Stop, AStopTokenIsCountedAndNotSpoken) {
  HashModel model = endless();
  Harness first(kRoomy, {}, model);
  first.receive(Harness::request(1, prompt(5), 6));
  first.run();
  const std::vector<int32_t> text = first.outcomes.at(1).tokens;
  ASSERT_EQ(text.size(), 6u);

  Harness h(kRoomy, {}, model);
  wire::TokenizedRequest request = Harness::request(1, prompt(5), 6);
  request.sampling.stop_token_ids = {text[5]};  // the last permitted token: the stop wins
  h.receive(request);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, std::vector<int32_t>(text.begin(), text.end() - 1));
  EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kStop);
  EXPECT_EQ(h.outcomes.at(1).finish->matched_token, text[5]);
  EXPECT_EQ(h.outcomes.at(1).usage.completion_tokens, 6);
}

// ---- budget and fairness --------------------------------------------------------------------------------------------

// Invariant: decodes never starve.
TEST(Budget, EveryDecodeGetsATokenInEveryStepWhileLongPromptsPrefill) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 26;  // at ten decodes there are 16 rows left for prompts, which they always have
  Harness h({1000, 2000, 16, 1000}, options, endless());
  for (uint64_t id = 1; id <= 8; ++id) h.receive(Harness::request(id, prompt(2, static_cast<int32_t>(id)), 100));
  h.step();
  for (uint64_t id = 11; id <= 13; ++id) {  // a later one is shorter, so that two prompts share a batch
    const auto first = static_cast<int32_t>(id * 20);
    h.receive(Harness::request(id, prompt(900 - 15 * (first - 220), first), 2));
  }
  std::size_t largest = 0;
  std::size_t mixed = 0;
  h.runner.on_submit = [&](const Batch& batch) {
    std::size_t rows = 0;
    for (const SequenceStep& step : batch.sequences) rows += step.tokens.size();
    largest = std::max(largest, rows);
    mixed += batch.sequences.size() > 9;  // eight decodes and at least two prompts in one batch
  };
  h.run();
  for (uint64_t id = 1; id <= 8; ++id) {
    const std::vector<uint64_t>& at = h.outcomes.at(id).at_steps;
    ASSERT_EQ(at.size(), 100u);
    EXPECT_EQ(at.back() - at.front(), 99u) << "request " << id << " missed a step";
  }
  EXPECT_EQ(largest, 26u);
  EXPECT_GT(mixed, 10u);
  h.expect_clean_end();
}

TEST(Budget, DecodesDoNotStarvePrefillsEither) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 4;
  Harness h(kRoomy, options, endless());
  for (uint64_t id = 1; id <= 10; ++id) h.receive(Harness::request(id, prompt(1, static_cast<int32_t>(id)), 200));
  h.step();
  h.receive(Harness::request(11, prompt(40, 300), 1));
  h.run();
  // 40 tokens, four a step although ten decodes already exceed the budget.
  EXPECT_LE(h.outcomes.at(11).at_steps.at(0), 12u);
  h.expect_clean_end();
}

// Invariant: a long prompt does not hold up a short one by more than the short one's own share of the budget.
TEST(Budget, AShortPromptPassesALongOneThatIsBeingPrefilled) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 32;
  Harness h({1000, 20000, 16, 2000}, options, endless());
  h.receive(Harness::request(1, prompt(16000), 1));
  h.step();
  h.receive(Harness::request(2, prompt(48, 400), 1));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).at_steps.at(0), 5u);    // 48 tokens at 16 a step, after the two in flight
  EXPECT_LE(h.outcomes.at(1).at_steps.at(0), 504u);  // and the long one lost 48 tokens' time
  h.expect_clean_end();
}

// Invariant: bounded skip-over. A big request among a stream of small ones is served after at most max_skips of them.
TEST(Admission, ABigRequestIsNeitherStarvedNorInTheWay) {
  SchedulerOptions options;
  options.max_skips = 5;
  options.prefix_cache = false;
  Harness h({1000, 256, 16, 16}, options, endless());
  uint64_t id = 10;
  // Two small requests hold pages at every moment, so that the big one (15 of 16 pages) does not fit at once.
  const auto small = [&] { h.receive(Harness::request(id, prompt(16, static_cast<int32_t>(id)), 8)), ++id; };
  small(), small(), small();
  h.step();
  h.receive(Harness::request(1, prompt(239, 500), 2));
  const uint64_t first_after = id;
  for (int i = 0; i < 200; ++i) {
    if (i % 3 == 0 && id < 60) small();
    h.step();
  }
  h.run();
  const uint64_t big_at = h.outcomes.at(1).at_steps.at(0);
  int passed = 0;
  for (uint64_t other = first_after; other < id; ++other) passed += h.outcomes.at(other).at_steps.at(0) < big_at;
  EXPECT_GT(passed, 0);  // it was not in the way
  EXPECT_LE(passed, 5);  // nor starved
  h.expect_clean_end();
}

TEST(Admission, RunsNoMoreThanMaxRunning) {
  SchedulerOptions options;
  options.max_running_requests = 3;
  Harness h(kRoomy, options, endless());
  std::size_t most = 0;
  h.runner.on_submit = [&](const Batch& batch) { most = std::max(most, batch.sequences.size()); };
  for (uint64_t id = 1; id <= 9; ++id) h.receive(Harness::request(id, prompt(4), 6));
  h.run();
  EXPECT_EQ(most, 3u);
  h.expect_clean_end();
}

// ---- retraction -----------------------------------------------------------------------------------------------------

// Invariant: retraction changes no text. (The workload test checks the texts; this one that it happens, and to whom.)
TEST(Retraction, TheLeastAdvancedGoesBackAndKeepsItsTokens) {
  for (bool cache : {true, false}) {
    SchedulerOptions options;
    options.prefix_cache = cache;
    options.conservativeness = 0;
    Harness alone({1000, 256, 4, 64}, options, endless());
    Harness h({1000, 256, 4, 12}, options, endless());
    for (uint64_t id = 1; id <= 4; ++id) {
      const wire::TokenizedRequest request = Harness::request(id, prompt(5, static_cast<int32_t>(100 * id)), 30);
      alone.receive(request);
      alone.run();
      h.receive(request);
      h.step();
    }
    h.run();
    EXPECT_GT(h.scheduler.facts().retractions, 0u);
    for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(h.outcomes.at(id).tokens, alone.outcomes.at(id).tokens);
    // The first came first, was always ahead, and so never went back: it got a token in every step.
    const std::vector<uint64_t>& at = h.outcomes.at(1).at_steps;
    EXPECT_EQ(at.back() - at.front(), 29u);
    h.expect_clean_end();
  }
}

TEST(Retraction, OneThatFillsThePoolAloneEndsAsAtTheEndOfTheContext) {
  Harness h({1000, 256, 16, 3}, {}, endless());
  h.receive(Harness::request(1, prompt(20), 200));
  h.run();
  const auto& outcome = h.outcomes.at(1);
  EXPECT_EQ(outcome.tokens.size(), 29u);  // 48 slots hold 20 + 28 tokens; the 29th was sampled from them
  EXPECT_EQ(outcome.finish->reason, wire::FinishReason::kLength);
  h.receive(Harness::request(2, prompt(20, 77), 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).tokens.size(), 3u);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
