// Seeded random workloads on the fake runner. The oracle is HashModel: a plain loop over a list of tokens that knows
// nothing of pages, chunks, batches, caches or retraction.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace {
namespace {

using testing::Expected;
using testing::FakeRunner;
using testing::Harness;
using testing::HashModel;
using testing::Outcome;
using testing::predict;

// One random world: a machine, a configuration, requests with arrival times, aborts.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    model_.vocab_size = 200;
    model_.eos_one_in = pick({0u, 15u, 60u});
    facts_.vocab_size = 200;
    facts_.page_size = pick({1, 16, 64});
    facts_.context_length = pick({48, 130, 300});
    const int32_t context_pages = (facts_.context_length + facts_.page_size - 1) / facts_.page_size;
    // From too small for one full context to roomy.
    facts_.page_count = std::max(1, context_pages * pick({1, 2, 3, 3, 5, 12}) / 2 + pick({0, 1}));
    options_.chunked_prefill_tokens = pick({1, 5, 16, 64, 512});
    options_.max_running_requests = pick({1, 3, 8, 16});
    options_.max_queued_requests = pick({3, 1000, 1000, 1000});
    options_.max_skips = pick({0, 2, 16});
    options_.conservativeness = pick({0.0, 0.0, 0.3, 1.0});
    options_.prefix_cache = pick({0, 1, 1}) == 1;
    prefix_ = random_tokens(facts_.context_length / pick({2, 8}));
    const int count = pick({3, 8, 20});
    for (int i = 0; i < count; ++i) add_request(static_cast<uint64_t>(i + 1));
  }

  void run() {
    Harness harness(facts_, options_, model_);
    harness.runner.polls_per_step = pick({0, 0, 1, 3});
    for (uint64_t now = 0; !arrivals_.empty() || !aborts_.empty() || harness.scheduler.busy(); ++now) {
      ASSERT_LT(now, 100000u) << "no end in sight";
      for (; !arrivals_.empty() && arrivals_.begin()->first <= now; arrivals_.erase(arrivals_.begin())) {
        harness.receive(requests_.at(arrivals_.begin()->second));
      }
      for (; !aborts_.empty() && aborts_.begin()->first <= now; aborts_.erase(aborts_.begin())) {
        harness.abort(aborts_.begin()->second);
      }
      harness.step();
      if (::testing::Test::HasFailure()) return;
    }
    harness.expect_clean_end();
    retractions += harness.scheduler.facts().retractions;
    cached_tokens += harness.scheduler.facts().cached_tokens;
    for (const auto& [id, request] : requests_) judge(request, harness.outcomes.at(id));
  }

  // How often the rarer things happened, over all worlds: a suite that never retracts proves nothing about retraction.
  inline static uint64_t retractions = 0, cached_tokens = 0, aborted = 0, stopped = 0, lengths = 0, too_long = 0,
                         rejected = 0;

 private:
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  std::vector<int32_t> random_tokens(int32_t count) {
    std::vector<int32_t> tokens(static_cast<std::size_t>(std::max(count, 0)));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 200);
    return tokens;
  }

  void add_request(uint64_t id) {
    // Part of a prefix that all know, then something of one's own.
    std::vector<int32_t> prompt(prefix_.begin(),
                                prefix_.begin() + static_cast<std::ptrdiff_t>(random_() % prefix_.size()));
    const std::vector<int32_t> own = random_tokens(static_cast<int32_t>(random_() % 12) + 1);
    prompt.insert(prompt.end(), own.begin(), own.end());
    wire::TokenizedRequest request = Harness::request(id, prompt, pick({1, 2, 9, 40, 300}));
    request.sampling.temperature = pick({0.0, 1.0});
    request.sampling.ignore_eos = pick({0, 0, 1}) == 1;
    if (pick({0, 0, 1}) == 1) request.sampling.stop_token_ids = random_tokens(5);
    if (pick({0, 1}) == 1) request.extra_key = pick({"a", "b"});
    requests_[id] = request;
    const uint64_t at = random_() % 60;
    arrivals_.emplace(at, id);
    if (random_() % 6 == 0) aborts_.emplace(at + random_() % 50, id);
  }

  void judge(const wire::TokenizedRequest& request, const Outcome& outcome) {
    SCOPED_TRACE("request " + std::to_string(request.id.value));
    const Expected expected = predict(request, model_, 1, facts_.context_length);
    ASSERT_TRUE(outcome.finish.has_value());
    ASSERT_LE(outcome.tokens.size(), expected.tokens.size());
    ASSERT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.tokens.begin()));
    switch (outcome.finish->reason) {
      case wire::FinishReason::kStop:
      case wire::FinishReason::kLength:
        ASSERT_EQ(outcome.finish->reason, expected.finish.reason);
        ASSERT_EQ(outcome.finish->matched_token, expected.finish.matched_token);
        ASSERT_EQ(outcome.tokens, expected.tokens);
        ++(expected.finish.matched_token ? stopped : lengths);
        break;
      case wire::FinishReason::kAborted:
        ++aborted;
        break;
      case wire::FinishReason::kError:
        judge_error(request, outcome);
        break;
    }
  }

  // Errors must be true: the request really does not fit the pool, or the queue really had a limit.
  void judge_error(const wire::TokenizedRequest& request, const Outcome& outcome) {
    const auto pool_tokens = static_cast<std::size_t>(facts_.page_count) * static_cast<std::size_t>(facts_.page_size);
    if (outcome.accepted) {
      ASSERT_EQ(outcome.finish->code, StatusCode::kTooLarge);
      ASSERT_GT(request.prompt.size() + outcome.tokens.size(), pool_tokens);
      ++too_long;
      return;
    }
    ++rejected;
    if (outcome.finish->code == StatusCode::kResourceExhausted) {
      ASSERT_LT(options_.max_queued_requests, 1000);
      return;
    }
    ASSERT_EQ(outcome.finish->code, StatusCode::kInvalidArgument);
    ASSERT_TRUE(request.prompt.size() > pool_tokens ||
                request.prompt.size() >= static_cast<std::size_t>(facts_.context_length));
  }

  std::mt19937_64 random_;
  HashModel model_;
  RunnerFacts facts_;
  SchedulerOptions options_;
  std::vector<int32_t> prefix_;
  std::map<uint64_t, wire::TokenizedRequest> requests_;
  std::multimap<uint64_t, uint64_t> arrivals_;  // time in steps -> request
  std::multimap<uint64_t, uint64_t> aborts_;
};

// Invariants: one request, one end; the same bits; no wrong text; books balance.
TEST(Workload, EveryRequestEndsOnceWithThePredictedText) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("retractions %lu, cached tokens %lu, stopped %lu, length %lu, aborted %lu, too long %lu, rejected %lu\n",
              World::retractions, World::cached_tokens, World::stopped, World::lengths, World::aborted, World::too_long,
              World::rejected);
  EXPECT_GT(World::retractions, 300u);
  EXPECT_GT(World::cached_tokens, 10000u);
  EXPECT_GT(World::stopped, 500u);
  EXPECT_GT(World::lengths, 500u);
  EXPECT_GT(World::aborted, 100u);
  EXPECT_GT(World::too_long, 20u);
  EXPECT_GT(World::rejected, 100u);
}

// The same eight requests in many arrival orders and configurations say the same.
TEST(Workload, TokensDoNotDependOnOrderCacheChunksOrMemory) {
  std::mt19937_64 random(5);
  std::vector<wire::TokenizedRequest> requests;
  std::vector<int32_t> prompt;
  for (uint64_t id = 1; id <= 8; ++id) {
    for (int i = 0; i < 9; ++i) prompt.push_back(static_cast<int32_t>(random() % 200));
    requests.push_back(Harness::request(id, prompt, 30));
  }
  std::map<uint64_t, std::vector<int32_t>> first;
  uint64_t retractions = 0;
  for (int variant = 0; variant < 96; ++variant) {
    SCOPED_TRACE("variant " + std::to_string(variant));
    RunnerFacts facts{200, 128, variant % 3 == 0 ? 1 : variant % 3 == 1 ? 4 : 16, 0};
    const bool tight = variant % 2 == 0;
    facts.page_count = (tight ? 128 : 1024) / facts.page_size;
    SchedulerOptions options;
    options.prefix_cache = variant % 4 < 2;
    options.chunked_prefill_tokens = variant % 5 == 0 ? 7 : 512;
    HashModel model;
    model.vocab_size = 200;
    Harness harness(facts, options, model);
    std::ranges::shuffle(requests, random);
    for (const wire::TokenizedRequest& request : requests) {
      harness.receive(request);
      if (random() % 2 == 0) harness.step();
    }
    harness.run();
    harness.expect_clean_end();
    retractions += harness.scheduler.facts().retractions;
    for (const auto& [id, outcome] : harness.outcomes) {
      const auto [it, is_first] = first.emplace(id, outcome.tokens);
      ASSERT_EQ(it->second, outcome.tokens) << "request " << id;
    }
  }
  EXPECT_GT(retractions, 0u);
}

}  // namespace
}  // namespace millrace
