// Prefix reuse between requests, and what must never be reused.
#include <gtest/gtest.h>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

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
    request.extra_key = salt;
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
  const auto cached = [&](uint64_t id, const std::vector<int32_t>& tokens) {
    wire::TokenizedRequest request = Harness::request(id, tokens, 10);
    request.sampling.seed = 3;
    h.receive(request);
    h.run();
    return h.outcomes.at(id).usage.cached_tokens;
  };
  h.runner.weight_version = 5;
  EXPECT_EQ(cached(1, prompt(60)), 0);
  h.runner.weight_version = 6;
  EXPECT_EQ(cached(2, prompt(60)), 48);  // found under 5, went on under 6: mixed
  EXPECT_EQ(cached(3, prompt(60)), 0);
  EXPECT_EQ(cached(4, prompt(60)), 48);
  std::vector<int32_t> all = prompt(60);
  for (int32_t token : h.outcomes.at(4).tokens) {
    EXPECT_EQ(token, endless().next(all, 6, 1.0, 3));
    all.push_back(token);
  }
  // Back to the old weights: the page that request 2 filled under the new ones must not be found.
  h.runner.weight_version = 5;
  h.scheduler.set_weight_version(5);
  std::vector<int32_t> mixed = prompt(60);
  mixed.insert(mixed.end(), h.outcomes.at(2).tokens.begin(), h.outcomes.at(2).tokens.end());
  EXPECT_EQ(cached(5, mixed), 48);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
