// What a request asks of its tokens: what the runner is told, what the client gets back; and prompts computed once.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

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

// ---- what the runner is told ----------------------------------------------------------------------------------------

TEST(Sampling, EveryFieldReachesTheRunner) {
  Harness h(kRoomy, {}, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 4);
  wire::SamplingParams& sampling = request.sampling;
  sampling.temperature = 0.7, sampling.top_p = 0.9, sampling.min_p = 0.05, sampling.top_k = 40;
  sampling.frequency_penalty = 0.5, sampling.presence_penalty = -0.5, sampling.repetition_penalty = 1.5;
  sampling.logit_bias = {{7, 2.5}}, sampling.top_logprobs = 3, sampling.logprob_token_ids = {5};
  sampling.min_tokens = 2, sampling.stop_token_ids = {9, 9, 5000};
  std::vector<SequenceStep> steps;
  h.runner.on_submit = [&](const Batch& batch) { steps.push_back(batch.sequences.at(0)); };
  h.receive(request);
  h.run();
  ASSERT_EQ(steps.size(), 4u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const SamplingSpec& spec = steps[i].sampling;
    EXPECT_EQ(std::make_tuple(spec.temperature, spec.top_p, spec.min_p, spec.top_k, spec.seed),
              std::make_tuple(0.7, 0.9, 0.05, 40, uint64_t{8}));
    EXPECT_EQ(std::make_tuple(spec.frequency_penalty, spec.presence_penalty, spec.repetition_penalty),
              std::make_tuple(0.5, -0.5, 1.5));
    EXPECT_EQ(spec.logit_bias, (SharedSpan<wire::LogitBias>{{7, 2.5}}));
    EXPECT_EQ(spec.top_logprobs, 3);
    EXPECT_EQ(spec.logprob_token_ids, SharedSpan<int32_t>{5});
    // The end token 0 and the stop token inside the vocabulary, until two tokens are drawn, in flight or not.
    EXPECT_EQ(spec.banned, i < 2 ? (SharedSpan<int32_t>{0, 9}) : SharedSpan<int32_t>{}) << i;
    EXPECT_EQ(steps[i].generated.size(), i > 0 ? i - 1 : 0);  // and the last token of the step
    EXPECT_EQ(steps[i].last_is_generated, i > 0);
  }
  h.expect_clean_end();
}

// Whatever a text's length, a step passes on the memory of the step before: nothing that grows is copied, but where an
// array's memory is full and doubles.
TEST(Sampling, StepsShareWhatGrows) {
  Harness h(kRoomy, {}, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 200);
  request.sampling.frequency_penalty = 0.5, request.sampling.min_tokens = 200;
  request.sampling.logit_bias = {{7, 2.5}}, request.sampling.top_logprobs = 1, request.sampling.logprob_token_ids = {5};
  std::vector<SequenceStep> steps;
  h.runner.on_submit = [&](const Batch& batch) { steps.push_back(batch.sequences.at(0)); };
  h.receive(request);
  h.run();
  ASSERT_EQ(steps.size(), 200u);
  int page_copies = 0, generated_copies = 0;
  for (std::size_t i = 2; i < steps.size(); ++i) {
    const SequenceStep &before = steps[i - 1], &now = steps[i];
    EXPECT_EQ(now.sampling.logit_bias.data(), before.sampling.logit_bias.data());
    EXPECT_EQ(now.sampling.logprob_token_ids.data(), before.sampling.logprob_token_ids.data());
    EXPECT_EQ(now.sampling.banned.data(), before.sampling.banned.data());
    page_copies += now.pages.data() != before.pages.data();
    generated_copies += i > 2 && now.generated.data() != before.generated.data();
  }
  EXPECT_EQ(page_copies, 0);       // 14 pages: they fit in the first 16 places
  EXPECT_EQ(generated_copies, 4);  // at 16, 32, 64 and 128
  h.expect_clean_end();
}

TEST(Sampling, ChunksThatSampleNothingAskForNothing) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 16;
  Harness h(kRoomy, options, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(40), 1);
  request.sampling.logit_bias = {{7, 2.5}};
  std::vector<std::size_t> biases;
  h.runner.on_submit = [&](const Batch& b) { biases.push_back(b.sequences.at(0).sampling.logit_bias.size()); };
  h.receive(request);
  h.run();
  EXPECT_EQ(biases, (std::vector<std::size_t>{0, 0, 1}));
}

TEST(Sampling, NoStopBeforeMinTokens) {
  HashModel model;
  model.eos_one_in = 2;
  int longer = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    Harness h(kRoomy, {}, model);
    wire::TokenizedRequest request = Harness::request(id, prompt(8), 30);
    request.sampling.min_tokens = 12;
    request.sampling.ignore_eos = id % 4 == 0;
    h.receive(request);
    h.run();
    const testing::Expected expected = predict(request, model, 1, 256);
    EXPECT_EQ(h.outcomes.at(id).tokens, expected.tokens);
    EXPECT_GE(h.outcomes.at(id).tokens.size(), 12u);
    longer += h.outcomes.at(id).tokens.size() > 12;
  }
  EXPECT_GT(longer, 5);
}

TEST(Sampling, RangesAreCheckedWithFieldValueAndLimits) {
  Harness h(kRoomy, {}, endless());
  uint64_t id = 0;
  const auto refused = [&](auto change, StatusCode code = StatusCode::kInvalidArgument) {
    wire::TokenizedRequest request = Harness::request(++id, prompt(4), 5);
    change(request);
    h.receive(request);
    EXPECT_EQ(h.outcomes.at(id).finish->code, code);
    EXPECT_FALSE(h.outcomes.at(id).accepted);
    return h.outcomes.at(id).finish->message;
  };
  using Request = wire::TokenizedRequest&;
  EXPECT_EQ(refused([](Request r) { r.sampling.min_tokens = 6; }),
            "min_tokens is 6; wanted 0..5, because at most 5 tokens can be generated");
  EXPECT_EQ(refused([](Request r) { r.sampling.min_tokens = -1; }),
            "min_tokens is -1; wanted 0..5, because at most 5 tokens can be generated");
  EXPECT_EQ(refused([](Request r) { r.sampling.prompt_logprobs_from = 5; }),
            "prompt_logprobs_from is 5; wanted -1..4, because the prompt has 4 tokens");
  EXPECT_EQ(
      refused(
          [](Request r) {
            r.sampling.prompt_logprobs_from = 1;
            r.sampling.top_logprobs = 1 << 19;
          },
          StatusCode::kUnsupported),
      "3 positions of the prompt with 524289 logprobs each are wanted; wanted at most 1572864 logprobs in all: ask for "
      "fewer, or from a later position on");
  EXPECT_EQ(refused([](Request r) {
              r.sampling.logit_bias = {{1000, 1}};
            }),
            "logit_bias names the token 1000; wanted 0..999");
  EXPECT_EQ(refused([](Request r) {
              r.sampling.logit_bias = {{1, HUGE_VAL}};
            }),
            "logit_bias of token 1 is inf; wanted a finite number");
  EXPECT_EQ(refused([](Request r) { r.sampling.logprob_token_ids = {-1}; }),
            "logprob_token_ids names the token -1; wanted 0..999");
  EXPECT_EQ(refused([](Request r) { r.timeout_ms = -5; }), "timeout_ms is -5; wanted an integer >= 0");
  EXPECT_EQ(refused([](Request r) { r.queue_timeout_ms = -5; }), "queue_timeout_ms is -5; wanted an integer >= 0");
}

TEST(Sampling, TheStartTellsTheDetokenizerItsStops) {
  Harness h(kRoomy, {}, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(4), 5);
  request.sampling.stop = {"END"}, request.sampling.stop_regex = {"a+b"};
  request.sampling.skip_special_tokens = false, request.sampling.include_stop_str_in_output = true;
  Scheduler::Deltas out;
  h.scheduler.receive(request, out);
  const wire::DetokenizeStart& start = out.at(0).start.value();
  EXPECT_EQ(start.stop, request.sampling.stop);
  EXPECT_EQ(start.stop_regex, request.sampling.stop_regex);
  EXPECT_FALSE(start.skip_special_tokens);
  EXPECT_TRUE(start.include_stop_str_in_output);
}

// ---- logprobs -------------------------------------------------------------------------------------------------------

TEST(Logprobs, ComeWithTokensAndTheStopTokensComeLast) {
  const wire::TokenizedRequest plain = Harness::request(1, prompt(6), 8);
  wire::TokenizedRequest request = plain;
  request.sampling.stop_token_ids = {predict(plain, endless(), 1, 256).tokens[3]};
  request.sampling.top_logprobs = 2, request.sampling.logprob_token_ids = {4, 5};
  Harness h(kRoomy, {}, endless());
  h.receive(request);
  h.run();
  const testing::Expected expected = predict(request, endless(), 1, 256);
  ASSERT_EQ(h.outcomes.at(1).logprobs.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(testing::same(h.outcomes.at(1).logprobs[i], expected.logprobs[i]));
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 3u);
  EXPECT_EQ(h.outcomes.at(1).weight_version, 1u);
}

TEST(Sampling, AnswersWithoutATokenNameTheWeights) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(1, prompt(6), 2));
  h.run();  // the scheduler knows the version of the weights from here on
  h.receive(Harness::request(2, prompt(6), 0));
  h.run();
  EXPECT_TRUE(h.outcomes.at(2).tokens.empty());
  EXPECT_EQ(h.outcomes.at(2).weight_version, 1u);
  h.receive(Harness::request(3, prompt(6), 8));
  h.abort(3);  // while it waits
  EXPECT_EQ(h.outcomes.at(3).weight_version, 1u);
}

// Invariant: prompt logprobs come once each, in order, whatever is cached, however it is chunked.
TEST(Logprobs, OfThePromptInChunksAndInSpiteOfTheCache) {
  for (int32_t from : {0, 1, 2, 15, 16, 17, 31, 32, 33, 49, 50}) {
    for (int32_t chunk : {1, 7, 16, 512}) {
      for (int32_t max_tokens : {0, 1, 3}) {
        SCOPED_TRACE(fmt::format("from {}, chunk {}, max_tokens {}", from, chunk, max_tokens));
        SchedulerOptions options;
        options.chunked_prefill_tokens = chunk;
        Harness h(kRoomy, options, endless());
        h.receive(Harness::request(1, prompt(50), 1));
        h.run();
        wire::TokenizedRequest request = Harness::request(2, prompt(50), max_tokens);
        request.sampling.prompt_logprobs_from = from;
        h.receive(request);
        h.run();
        const testing::Expected expected = predict(request, endless(), 1, 256);
        const testing::Outcome& outcome = h.outcomes.at(2);
        EXPECT_EQ(outcome.tokens, expected.tokens);
        EXPECT_EQ(outcome.finish->reason, FinishReason::kLength);
        ASSERT_EQ(outcome.prompt_logprobs.size(), static_cast<std::size_t>(50 - from));
        for (std::size_t i = 0; i < outcome.prompt_logprobs.size(); ++i) {
          ASSERT_TRUE(testing::same(outcome.prompt_logprobs[i], expected.prompt_logprobs[i])) << i;
        }
        // As much comes from the cache as leaves the rows that are wanted.
        EXPECT_EQ(outcome.usage.cached_tokens, std::min(48, std::max(0, from == 50 ? 49 : from - 1) / 16 * 16));
        h.expect_clean_end();
      }
    }
  }
}

TEST(Logprobs, ARequestThatOnlyScoresEndsWithoutAToken) {
  Harness h(kRoomy, {}, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 0);
  request.sampling.prompt_logprobs_from = 0;
  h.receive(request);
  h.receive(Harness::request(2, prompt(1), 0));
  h.run();
  EXPECT_TRUE(h.outcomes.at(1).tokens.empty());
  EXPECT_EQ(h.outcomes.at(1).prompt_logprobs.size(), 20u);
  EXPECT_FALSE(h.outcomes.at(1).prompt_logprobs[0].logprob.has_value());
  EXPECT_EQ(h.outcomes.at(1).usage.completion_tokens, 0);
  EXPECT_EQ(h.outcomes.at(2).finish->reason, FinishReason::kLength);
  h.expect_clean_end();
}

// ---- identical prefixes are computed once ---------------------------------------------------------------------------

// Invariant: n copies of a prompt compute it once.
TEST(SharedPrefill, CopiesThatWaitTogetherComputeThePromptOnce) {
  for (bool overlap : {false, true}) {
    for (int32_t chunk : {16, 40, 512}) {
      SchedulerOptions options;
      options.overlap = overlap;
      options.chunked_prefill_tokens = chunk;
      Harness h(kRoomy, options, endless());
      for (uint64_t id = 1; id <= 5; ++id) h.receive(Harness::request(id, prompt(100), 1));
      h.run();
      // 6 whole pages once; the last 4 tokens each.
      EXPECT_EQ(h.scheduler.facts().computed_tokens, 100u + 4 * 4u);
      EXPECT_EQ(h.scheduler.facts().deferred, 4u);
      for (uint64_t id = 2; id <= 5; ++id) EXPECT_EQ(h.outcomes.at(id).usage.cached_tokens, 96);
      h.expect_clean_end();
    }
  }
}

TEST(SharedPrefill, OthersPassWhoWaitsForAPrefixAndAreNotCounted) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 32;
  options.max_skips = 0;  // a request that held up others would hold up all
  Harness h(kRoomy, options, endless());
  h.receive(Harness::request(1, prompt(160), 1));
  h.receive(Harness::request(2, prompt(160), 1));
  h.receive(Harness::request(3, prompt(10, 500), 1));
  h.run();
  EXPECT_LT(h.outcomes.at(3).at_steps.at(0), h.outcomes.at(1).at_steps.at(0));
  EXPECT_EQ(h.scheduler.facts().computed_tokens, 160u + 16u + 10u);
  h.expect_clean_end();
}

TEST(SharedPrefill, WhoComputesItMayGoAndAnotherTakesOver) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 16;
  Harness h(kRoomy, options, endless());
  for (uint64_t id = 1; id <= 3; ++id) h.receive(Harness::request(id, prompt(160), 2));
  for (int i = 0; i < 3; ++i) h.step();
  h.abort(1);
  h.run();
  for (uint64_t id : {2, 3}) {
    EXPECT_EQ(h.outcomes.at(id).tokens, predict(Harness::request(id, prompt(160), 2), endless(), 1, 256).tokens);
  }
  // Nothing was computed twice but the last page of the second copy, and perhaps the chunk in flight at the abort.
  EXPECT_LE(h.scheduler.facts().computed_tokens, 160u + 16u + 16u + 2u + 32u);
  h.expect_clean_end();
}

TEST(SharedPrefill, DifferentSaltsDoNotWaitForEachOther) {
  Harness h(kRoomy, {}, endless());
  for (uint64_t id = 1; id <= 3; ++id) {
    wire::TokenizedRequest request = Harness::request(id, prompt(100), 1);
    request.extra_key = std::string(id, 's');
    h.receive(request);
  }
  h.run();
  EXPECT_EQ(h.scheduler.facts().deferred, 0u);
  EXPECT_EQ(h.scheduler.facts().computed_tokens, 300u);
}

}  // namespace
}  // namespace millrace
