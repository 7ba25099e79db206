// Forced runs change the number of steps and nothing else: each request has the same text with them and without.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace {
namespace {

using testing::chain;
using testing::endless;
using testing::Harness;
using testing::HashModel;
using testing::kForcedRun;
using testing::kRoomy;
using testing::Outcome;
using testing::predict;
using testing::prompt;

wire::TokenizedRequest guided(uint64_t id, int32_t max_tokens) {
  wire::TokenizedRequest request = Harness::request(id, prompt(5 + static_cast<int32_t>(id)), max_tokens);
  request.sampling.grammar.emplace();
  return request;
}

struct Ran {
  std::map<uint64_t, Outcome> outcomes;
  SchedulerFacts facts;
  std::size_t most_rows = 0;  // of one sequence behind its prompt
};

Ran run(const std::vector<wire::TokenizedRequest>& requests, RunnerFacts facts, SchedulerOptions options,
        HashModel model = {}) {
  Harness h(facts, std::move(options), model);
  Ran out;
  h.runner.on_submit = [&](const Batch& batch) {
    for (const SequenceStep& step : batch.sequences) {
      if (step.last_is_generated) out.most_rows = std::max(out.most_rows, step.tokens.size());
    }
  };
  for (const wire::TokenizedRequest& request : requests) h.receive(request);
  h.run();
  h.expect_clean_end();
  out.outcomes = std::move(h.outcomes);
  out.facts = h.scheduler.facts();
  return out;
}

// As text(), but for when each token came.
void expect_same(const Ran& a, const Ran& b) {
  for (const auto& [id, one] : a.outcomes) {
    const Outcome& other = b.outcomes.at(id);
    EXPECT_EQ(one.tokens, other.tokens) << id;
    EXPECT_EQ(one.finish->reason, other.finish->reason) << id;
    EXPECT_EQ(one.finish->matched_token, other.finish->matched_token) << id;
    EXPECT_EQ(one.usage.completion_tokens, other.usage.completion_tokens) << id;
    EXPECT_EQ(one.usage.cached_tokens, other.usage.cached_tokens) << id;
  }
}

TEST(ForcedRun, FewerStepsAndTheSameText) {
  for (const RunnerFacts& facts : {kRoomy, chain(2), chain(4)}) {
    for (const bool overlap : {true, false}) {
      SchedulerOptions with{.overlap = overlap}, without{.max_forced_run = 0, .overlap = overlap};
      const Ran runs = run({guided(1, 100)}, facts, with, endless()),
                single = run({guided(1, 100)}, facts, without, endless());
      expect_same(runs, single);
      EXPECT_EQ(runs.outcomes.at(1).tokens.size(), 100u);
      EXPECT_EQ(single.facts.steps, 100u);
      EXPECT_EQ(single.facts.forced_run_tokens, 0u);
      EXPECT_EQ(single.most_rows, 1u);
      EXPECT_LT(runs.facts.steps, 70u);
      EXPECT_EQ(runs.facts.steps + runs.facts.forced_run_tokens, single.facts.steps);
      EXPECT_EQ(runs.facts.computed_tokens, single.facts.computed_tokens) << "no row was computed in vain";
    }
  }
}

TEST(ForcedRun, IsCutByWhatEndsTheRequest) {
  for (int32_t max_tokens = 1; max_tokens < 3 * kForcedRun; ++max_tokens) {
    wire::TokenizedRequest stopped = guided(2, 100);
    stopped.sampling.stop_token_ids = {max_tokens + kForcedRun, 7 * kForcedRun + max_tokens % kForcedRun};
    wire::TokenizedRequest late = guided(3, 60);
    late.sampling.min_tokens = max_tokens;
    const std::vector<wire::TokenizedRequest> requests{guided(1, max_tokens), stopped, late};
    RunnerFacts facts = kRoomy;
    facts.context_length = 40 + max_tokens;
    HashModel model;
    model.vocab_size = 100;
    const Ran runs = run(requests, facts, {}, model), single = run(requests, facts, {.max_forced_run = 0}, model);
    expect_same(runs, single);
    for (const wire::TokenizedRequest& request : requests) {
      EXPECT_EQ(runs.outcomes.at(request.id.value).tokens, predict(request, model, 1, facts.context_length).tokens);
    }
  }
}

TEST(ForcedRun, LogprobsKeepTheirSteps) {
  wire::TokenizedRequest request = guided(1, 50);
  request.sampling.top_logprobs = 1;
  const Ran runs = run({request}, kRoomy, {}, endless());
  EXPECT_EQ(runs.facts.forced_run_tokens, 0u);
  EXPECT_EQ(runs.outcomes.at(1).logprobs.size(), 50u);
}

TEST(ForcedRun, PenaltiesCountItsTokens) {
  wire::TokenizedRequest request = guided(1, 80);
  request.sampling.frequency_penalty = 0.5;
  request.sampling.repetition_penalty = 1.25;
  const Ran runs = run({request}, kRoomy, {}, endless());
  EXPECT_EQ(runs.outcomes.at(1).tokens, predict(request, endless(), 1, kRoomy.context_length).tokens);
  EXPECT_GT(runs.facts.forced_run_tokens, 20u);
}

TEST(ForcedRun, StaysWithinTheBudgetOfAStepAndItsLimit) {
  const Ran small = run({guided(1, 80), guided(2, 80)}, kRoomy, {.chunked_prefill_tokens = 4}, endless());
  EXPECT_LE(small.most_rows, 4u);
  EXPECT_GT(small.most_rows, 1u);
  const Ran two = run({guided(1, 80)}, kRoomy, {.max_forced_run = 2, .overlap = false}, endless());
  EXPECT_EQ(two.most_rows, 3u);
}

// The runner's word is not taken for a token that it then draws otherwise.
TEST(ForcedRun, ADrawThatDiffersFromItIsAFault) {
  Harness h(kRoomy, {}, endless());
  h.receive(guided(1, 60));
  h.runner.on_submit = [&](const Batch& batch) {
    const SequenceStep& step = batch.sequences.front();
    if (step.last_is_generated && step.tokens.size() > 1) h.runner.model.vocab_size = 3;  // forces others from now on
  };
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->reason, wire::FinishReason::kError);
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace
