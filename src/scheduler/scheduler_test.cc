// The named behaviours of docs/scheduler.md, one by one.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "scheduler/stop.h"
#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::Harness;
using testing::HashModel;
using wire::FinishReason;

std::vector<int32_t> prompt(int32_t length, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<std::size_t>(length));
  for (int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = (first + i) % 900;
  return tokens;
}

constexpr RunnerFacts kRoomy{1000, 256, 16, 256};

// Never ends by itself, so that lengths are known.
HashModel endless() {
  HashModel model;
  model.eos_one_in = 0;
  return model;
}

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
  EXPECT_EQ(rejection(h, 2, StatusCode::kInvalidArgument),
            "the prompt has 64 tokens; wanted at most 63, because the context holds 64 tokens");
  h.receive(Harness::request(3, prompt(49), 5));
  EXPECT_EQ(rejection(h, 3, StatusCode::kInvalidArgument), "the prompt needs 4 KV pages of 16 tokens; the pool has 3");
  h.receive(Harness::request(4, {1, 1000, 2}, 5));
  EXPECT_EQ(rejection(h, 4, StatusCode::kInvalidArgument), "prompt token 1 is 1000; wanted 0..999");
  h.receive(Harness::request(5, {-1}, 5));
  EXPECT_EQ(rejection(h, 5, StatusCode::kInvalidArgument), "prompt token 0 is -1; wanted 0..999");
  h.receive(Harness::request(6, {1}, 0));
  EXPECT_EQ(rejection(h, 6, StatusCode::kInvalidArgument), "max_tokens is 0; wanted an integer >= 1");
  EXPECT_EQ(h.scheduler.facts().rejected, 6u);
  EXPECT_FALSE(h.step());
  h.expect_clean_end();
}

TEST(Receive, TheLargestPromptsThatFitAreServed) {
  Harness h({1000, 64, 16, 4}, {}, endless());
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
  for (uint64_t id = 1; id <= 3; ++id) h.receive(Harness::request(id, prompt(4), 3));
  EXPECT_EQ(rejection(h, 3, StatusCode::kResourceExhausted), "2 requests are waiting; the limit is 2; try again later");
  h.run();
  h.receive(Harness::request(4, prompt(4), 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(4).tokens.size(), 3u);
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

TEST(Receive, DrainingRefusesTheNewAndFinishesTheOld) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(1, prompt(4), 5));
  h.step();
  h.scheduler.drain();
  h.receive(Harness::request(2, prompt(4), 5));
  rejection(h, 2, StatusCode::kUnavailable);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 5u);
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

// ---- prefix cache ---------------------------------------------------------------------------------------------------

TEST(PrefixCache, ASecondRequestComputesOnlyItsSuffix) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(1, prompt(40), 4));
  h.run();
  EXPECT_EQ(h.outcomes.at(1).usage.cached_tokens, 0);
  const uint64_t before = h.scheduler.facts().computed_tokens;
  h.receive(Harness::request(2, prompt(40), 1));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 32);
  EXPECT_EQ(h.scheduler.facts().computed_tokens - before, 8u);
  h.expect_clean_end();
}

TEST(PrefixCache, AFinishedRequestsTextIsCachedToo) {
  Harness h({1000, 256, 4, 64}, {}, endless());
  h.receive(Harness::request(1, prompt(10), 11));
  h.run();
  // The next turn of a chat: the prompt, the answer, something new. The last sampled token was never computed.
  std::vector<int32_t> next = prompt(10);
  next.insert(next.end(), h.outcomes.at(1).tokens.begin(), h.outcomes.at(1).tokens.end());
  next.push_back(5);
  h.receive(Harness::request(2, next, 1));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 20);
  h.expect_clean_end();
}

TEST(PrefixCache, AChunkIsSharedBeforeThePromptIsDone) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 16;
  Harness h(kRoomy, options, endless());
  h.receive(Harness::request(1, prompt(160), 1));
  h.step(), h.step();
  h.receive(Harness::request(2, prompt(40), 1));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 32);
  h.expect_clean_end();
}

TEST(PrefixCache, OffMeansOff) {
  SchedulerOptions options;
  options.prefix_cache = false;
  Harness h(kRoomy, options, endless());
  for (uint64_t id : {1, 2}) {
    h.receive(Harness::request(id, prompt(40), 4));
    h.run();
    EXPECT_EQ(h.outcomes.at(id).usage.cached_tokens, 0);
    EXPECT_EQ(h.scheduler.facts().pages_free, 256);
  }
  h.expect_clean_end();
}

TEST(PrefixCache, SaltsAndWeightVersionsShareNothing) {
  Harness h(kRoomy, {}, endless());
  const auto cached = [&](uint64_t id, const char* salt) {
    wire::TokenizedRequest request = Harness::request(id, prompt(40), 2);
    request.cache_salt = salt;
    request.sampling.seed = 3;
    h.receive(request);
    h.run();
    return h.outcomes.at(id).usage.cached_tokens;
  };
  EXPECT_EQ(cached(1, "alice"), 0);
  EXPECT_EQ(cached(2, "bob"), 0);
  EXPECT_EQ(cached(3, ""), 0);
  EXPECT_EQ(cached(4, "alice"), 32);
  EXPECT_EQ(h.outcomes.at(1).tokens, h.outcomes.at(2).tokens);
  h.runner.weight_version = 9;
  h.scheduler.set_weight_version(9);
  EXPECT_EQ(cached(5, "alice"), 0);
  EXPECT_EQ(cached(6, "alice"), 32);
  EXPECT_NE(h.outcomes.at(5).tokens, h.outcomes.at(1).tokens);
  EXPECT_EQ(h.outcomes.at(5).tokens, h.outcomes.at(6).tokens);
  h.expect_clean_end();
}

// Weights change and nobody tells the scheduler: what was computed across the change is never shared.
TEST(PrefixCache, PagesOfAnUnannouncedWeightVersionAreNotPublished) {
  Harness h(kRoomy, {}, endless());
  const auto cached = [&](uint64_t id) {
    wire::TokenizedRequest request = Harness::request(id, prompt(60), 2);
    request.sampling.seed = 3;
    h.receive(request);
    h.run();
    return h.outcomes.at(id).usage.cached_tokens;
  };
  h.runner.weight_version = 5;
  EXPECT_EQ(cached(1), 0);
  h.runner.weight_version = 6;
  EXPECT_EQ(cached(2), 48);  // found under 5, went on under 6: mixed
  EXPECT_EQ(cached(3), 0);
  EXPECT_EQ(cached(4), 48);
  std::vector<int32_t> all = prompt(60);
  for (int32_t token : h.outcomes.at(4).tokens) {
    EXPECT_EQ(token, endless().next(all, 6, 1.0, 3));
    all.push_back(token);
  }
  h.expect_clean_end();
}

// ---- budget and fairness --------------------------------------------------------------------------------------------

// Invariant: decodes never starve.
TEST(Budget, EveryDecodeGetsATokenInEveryStepWhileLongPromptsPrefill) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 24;
  Harness h({1000, 2000, 16, 1000}, options, endless());
  for (uint64_t id = 1; id <= 8; ++id) h.receive(Harness::request(id, prompt(2, static_cast<int32_t>(id)), 100));
  h.step();
  for (uint64_t id = 11; id <= 13; ++id) h.receive(Harness::request(id, prompt(900, static_cast<int32_t>(id * 20)), 2));
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
  EXPECT_EQ(largest, 24u);
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
  EXPECT_EQ(h.outcomes.at(2).at_steps.at(0), 4u);    // 48 tokens at 16 a step
  EXPECT_LE(h.outcomes.at(1).at_steps.at(0), 503u);  // and the long one lost 48 tokens' time
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

TEST(Retraction, TheLastSurvivorThatDoesNotFitEndsWithAClearError) {
  Harness h({1000, 256, 16, 3}, {}, endless());
  h.receive(Harness::request(1, prompt(20), 200));
  h.run();
  const auto& outcome = h.outcomes.at(1);
  EXPECT_EQ(outcome.tokens.size(), 29u);  // 48 slots hold 20 + 28 tokens; the 29th was sampled from them
  EXPECT_EQ(outcome.finish->code, StatusCode::kResourceExhausted);
  EXPECT_EQ(outcome.finish->message,
            "the request has 49 tokens and needs 4 KV pages of 16 tokens to go on; the pool has 3");
  h.receive(Harness::request(2, prompt(20, 77), 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).tokens.size(), 3u);
  h.expect_clean_end();
}

// ---- abort ----------------------------------------------------------------------------------------------------------

// Invariant: pages named by a batch in flight stay until it was polled.
TEST(Abort, InFlightWaitsForThePollAndThenAcknowledges) {
  Harness h(kRoomy, {}, endless());
  h.runner.polls_per_step = 2;
  h.receive(Harness::request(1, prompt(40), 100));
  h.step();
  const int32_t held = h.scheduler.facts().pages_held;
  EXPECT_EQ(held, 3);
  h.abort(1);
  h.abort(1);
  EXPECT_FALSE(h.outcomes.at(1).finish.has_value());
  EXPECT_EQ(h.scheduler.facts().pages_held, held);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kAborted);
  EXPECT_TRUE(h.outcomes.at(1).tokens.empty());
  h.abort(1);
  h.abort(12345);
  h.expect_clean_end();
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

TEST(Abort, FailAllEndsEverybodyOnce) {
  SchedulerOptions options;
  options.max_running_requests = 2;
  Harness h(kRoomy, options, endless());
  h.runner.polls_per_step = 1;
  for (uint64_t id = 1; id <= 4; ++id) h.receive(Harness::request(id, prompt(4), 50));
  h.step();
  Scheduler::Deltas out;
  h.scheduler.fail_all(error(StatusCode::kUnavailable, "the stage stops"), out);
  EXPECT_EQ(out.size(), 2u);  // those that wait; the others are in flight
  while (h.scheduler.step(0, out)) {
  }
  ASSERT_EQ(out.size(), 4u);
  for (const wire::TokenDelta& delta : out) EXPECT_EQ(delta.finish->code, StatusCode::kUnavailable);
  EXPECT_EQ(h.scheduler.facts().pages_held, 0);
}

// ---- faults of the runner -------------------------------------------------------------------------------------------

TEST(Fault, ABadRowEndsItsRequestAloneAndIsNotCached) {
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

TEST(Facts, CountStepsRunningWaitingAndPages) {
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
