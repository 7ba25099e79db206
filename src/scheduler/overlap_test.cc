// Two batches in flight: the same texts as with one, and nothing given back too early.
#include <gtest/gtest.h>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::HashModel;
using testing::kRoomy;
using testing::predict;
using testing::prompt;
using wire::FinishReason;

SchedulerOptions with_overlap(bool on) {
  SchedulerOptions options;
  options.overlap = on;
  return options;
}

TEST(Overlap, TheSecondBatchNamesTheTokenThatTheFirstSamples) {
  for (bool on : {false, true}) {
    Harness h(kRoomy, with_overlap(on), endless());
    int waiting = 0;
    h.runner.on_submit = [&](const Batch& batch) {
      for (const SequenceStep& step : batch.sequences) waiting += step.tokens.back() == kTokenInFlight;
    };
    const wire::TokenizedRequest request = Harness::request(1, prompt(5), 10);
    h.receive(request);
    h.run();
    EXPECT_EQ(h.outcomes.at(1).tokens, predict(request, endless(), 1, 256).tokens);
    EXPECT_EQ(waiting, on ? 9 : 0);
    EXPECT_EQ(h.runner.most_in_flight, on ? 2 : 1);
    h.expect_clean_end();
  }
}

// Invariant: a token in flight that surely is the last gets no further row.
TEST(Overlap, ASureEndCostsNoRow) {
  Harness h({1000, 40, 16, 16}, {}, endless());
  h.receive(Harness::request(1, prompt(5), 10));
  h.receive(Harness::request(2, prompt(30, 100), 100));  // the context ends it
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 10u);
  EXPECT_EQ(h.outcomes.at(2).tokens.size(), 10u);
  EXPECT_EQ(h.scheduler.facts().wasted_rows, 0u);
  EXPECT_EQ(h.scheduler.facts().computed_tokens, 5u + 9u + 30u + 9u);
  h.expect_clean_end();
}

// A stop token is seen when the next row is under way: that row is the price, and its token is never told.
TEST(Overlap, AStopTokenCostsOneRow) {
  const wire::TokenizedRequest plain = Harness::request(1, prompt(5), 10);
  wire::TokenizedRequest request = plain;
  request.sampling.stop_token_ids = {predict(plain, endless(), 1, 256).tokens[4]};
  for (bool on : {false, true}) {
    Harness h(kRoomy, with_overlap(on), endless());
    h.receive(request);
    h.run();
    EXPECT_EQ(h.outcomes.at(1).finish->reason, FinishReason::kStop);
    EXPECT_EQ(h.outcomes.at(1).tokens.size(), 4u);
    EXPECT_EQ(h.scheduler.facts().wasted_rows, on ? 1u : 0u);
    h.expect_clean_end();
  }
}

// Invariant: overlap on, overlap off and alone in the world are the same, token for token.
TEST(Overlap, OnEqualsOffEqualsAlone) {
  HashModel model;
  model.eos_one_in = 30;
  std::vector<wire::TokenizedRequest> requests;
  for (uint64_t id = 1; id <= 24; ++id) {
    const auto k = static_cast<int32_t>(id);
    wire::TokenizedRequest request = Harness::request(id, prompt(3 + 7 * k % 90, k % 5), 1 + 11 * k % 60);
    if (id % 3 == 0) request.sampling.repetition_penalty = 1.25;
    if (id % 4 == 0) request.sampling.min_tokens = request.sampling.max_tokens / 2;
    request.sampling.top_logprobs = id % 5 == 0 ? 2 : -1;
    requests.push_back(request);
  }
  for (int variant = 0; variant < 24; ++variant) {
    SCOPED_TRACE("variant " + std::to_string(variant));
    const int32_t page_size = variant % 3 == 0 ? 1 : variant % 3 == 1 ? 16 : 64;
    RunnerFacts facts{1000, 200, page_size, (variant % 2 == 0 ? 256 : 2048) / page_size};
    SchedulerOptions options = with_overlap(variant % 4 < 2);
    options.chunked_prefill_tokens = variant % 5 == 0 ? 16 : 512;
    options.max_running_requests = variant < 6 ? 1 : variant < 12 ? 7 : 32;
    Harness h(facts, options, model);
    for (const wire::TokenizedRequest& request : requests) {
      h.receive(request);
      if (request.id.value % 4 == 0) h.step();
    }
    h.run();
    h.expect_clean_end();
    for (const wire::TokenizedRequest& request : requests) {
      const testing::Expected expected = predict(request, model, 1, 200);
      const testing::Outcome& outcome = h.outcomes.at(request.id.value);
      ASSERT_EQ(outcome.tokens, expected.tokens) << "request " << request.id.value;
      ASSERT_EQ(outcome.finish->reason, expected.finish.reason);
      ASSERT_EQ(outcome.logprobs.size(), expected.logprobs.size());
    }
  }
}

// Invariant: ids may come again while the pages of the first are still on their way out.
TEST(Overlap, AnIdComesAgainWhileTheFirstIsInFlight) {
  Harness h({1000, 256, 16, 16}, {}, endless());
  h.runner.polls_per_step = 2;
  for (int round = 0; round < 10; ++round) {
    h.receive(Harness::request(7, prompt(40, 50 * round), 100));
    for (int i = 0; i < round; ++i) h.step();
    h.abort(7);
    EXPECT_EQ(h.outcomes.at(7).finish->reason, FinishReason::kAborted);
    h.outcomes.clear();
  }
  const wire::TokenizedRequest last = Harness::request(7, prompt(40, 600), 20);
  h.receive(last);
  h.run();
  EXPECT_EQ(h.outcomes.at(7).tokens, predict(last, endless(), 1, 256).tokens);
  // Nine of the ids before were aborted in flight or earlier; they count as ended, once each.
  EXPECT_EQ(h.scheduler.facts().ended, 11u);
  h.expect_clean_end();
}

// Invariant: what a failed row wrote, and what the row after it in flight wrote, is never found by others.
TEST(Overlap, ARowThatFailedMakesTheNextOneWorthless) {
  Harness h({1000, 256, 4, 64}, {}, endless());
  h.runner.fail_row = [](const SequenceStep& step) {
    return step.request == ReqId{1} && step.position == 13 ? internal_error("logits are not finite") : ok_status();
  };
  const wire::TokenizedRequest request = Harness::request(1, prompt(10), 20);
  h.receive(request);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kInternal);
  const std::vector<int32_t> text = predict(request, endless(), 1, 256).tokens;
  ASSERT_EQ(h.outcomes.at(1).tokens, std::vector<int32_t>(text.begin(), text.begin() + 4));
  std::vector<int32_t> longer = prompt(10);
  longer.insert(longer.end(), text.begin(), text.end());
  h.receive(Harness::request(2, longer, 3));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 8);  // the prompt's whole pages, which were good
  h.expect_clean_end();
}

// Two requests compute the same pages at the same time, because one wants its prompt's logprobs. The pages of the one
// that publishes second are in flight when they become duplicates; FakeRunner complains if they are given away then.
TEST(Overlap, DuplicatesStayUntilNoBatchNamesThem) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 16;
  Harness h({1000, 256, 4, 44}, options, endless());
  h.runner.polls_per_step = 1;
  uint64_t id = 0;
  for (int round = 0; round < 6; ++round) {
    for (int scores : {0, 1, 1}) {
      wire::TokenizedRequest request = Harness::request(++id, prompt(50, 100 * round), 4);
      request.sampling.prompt_logprobs_from = scores == 1 ? 0 : -1;
      h.receive(request);
    }
    for (int i = 0; i < 9; ++i) h.step();
  }
  h.run();
  h.expect_clean_end();
  for (uint64_t k = 1; k <= id; ++k) EXPECT_EQ(h.outcomes.at(k).tokens.size(), 4u);
}

// Invariant: a turn of the loop that says "call again" has moved something on or waited for the runner.
TEST(Overlap, NoTurnIsIdle) {
  for (bool on : {false, true}) {
    Harness h({1000, 256, 4, 40}, with_overlap(on), endless());
    uint64_t submitted = 0;
    h.runner.on_submit = [&](const Batch&) { ++submitted; };
    for (uint64_t id = 1; id <= 12; ++id)
      h.receive(Harness::request(id, prompt(20, static_cast<int32_t>(id) * 30), 60));
    uint64_t turns = 1;
    while (h.step()) ++turns;
    EXPECT_EQ(turns, submitted);  // each settles one batch
    EXPECT_GT(h.scheduler.facts().retractions, 0u);
    h.expect_clean_end();
  }
}

// Invariant: a batch is planned late in the one before it, as far as that one's time is known, so that one which
// arrives meanwhile is in it.
TEST(Overlap, WhoArrivesInALongStepIsInTheNext) {
  int64_t now_us = 0;
  SchedulerOptions options;
  options.now_us = [&now_us] { return now_us; };
  Harness h(kRoomy, options, endless());
  h.runner.compute_us = [](const Batch&) { return int64_t{50'000}; };
  std::vector<std::size_t> submitted;  // sequences of each batch
  h.runner.on_submit = [&](const Batch& batch) { submitted.push_back(batch.sequences.size()); };
  h.receive(Harness::request(1, prompt(20), 40));
  for (int i = 0; i < 6; ++i) {  // what a step takes is learnt
    h.step();
    now_us += 50'000;
  }
  while (h.scheduler.facts().in_flight > 0) h.step();
  h.runner.polls_per_step = 1000;  // from now on the runner is busy
  h.step();
  submitted.clear();
  h.receive(Harness::request(2, prompt(20, 300), 4));
  now_us += 30'000;
  h.step();
  EXPECT_TRUE(submitted.empty()) << "planned with 20 ms to go";
  h.receive(Harness::request(3, prompt(20, 600), 4));
  now_us += 14'500;
  h.step();
  EXPECT_EQ(submitted, std::vector<std::size_t>{3});
  h.runner.polls_per_step = 0;
  h.run(2000);
  h.expect_clean_end();
}

TEST(Overlap, AFailedStepEndsItsRequestsAloneAndNotThoseOfTheNext) {
  Harness h(kRoomy, {}, endless());
  h.runner.polls_per_step = 1;
  h.runner.fail_step = [](const Batch& batch) { return batch.step == 1 ? internal_error("broken") : ok_status(); };
  h.receive(Harness::request(1, prompt(20), 9));
  h.step(), h.step();  // steps 0 and 1 are submitted, 0 came back
  h.receive(Harness::request(2, prompt(20, 300), 9));
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->message, "the step failed: broken");
  EXPECT_EQ(h.outcomes.at(2).tokens.size(), 9u);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
