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
  h.switch_weights({.version = 9});
  EXPECT_EQ(cached(5, "alice"), 0);
  EXPECT_EQ(cached(6, "alice"), 32);
  EXPECT_NE(h.outcomes.at(5).tokens, h.outcomes.at(1).tokens);
  EXPECT_EQ(h.outcomes.at(5).tokens, h.outcomes.at(6).tokens);
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
