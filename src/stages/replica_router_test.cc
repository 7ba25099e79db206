// ReplicaRouter: each policy against its definition, and the prefix-aware one against a model that remembers
// every prompt in full.
#include "stages/replica_router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace millrace {
namespace {

using Tokens = std::vector<int32_t>;

Tokens tokens_of(int32_t first, int32_t count) {
  Tokens out;
  for (int32_t i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

ReplicaRouter::Prefix prefix(const Tokens& tokens, std::string_view key = "") {
  return ReplicaRouter::prefix_of(tokens, key);
}

const std::vector<bool> kBoth = {true, true};

TEST(ReplicaRouter, NamesAreParsedAndOthersAreRefused) {
  for (const char* name : {"round_robin", "least_requests", "least_tokens", "prefix_aware"}) {
    auto policy = parse_replica_policy(name);
    ASSERT_TRUE(policy.ok());
    EXPECT_STREQ(replica_policy_name(*policy), name);
  }
  const auto bad = parse_replica_policy("random");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("random"), std::string::npos);
  EXPECT_NE(bad.status().message().find("prefix_aware"), std::string::npos);
}

TEST(ReplicaRouter, RoundRobinTakesTurnsAndSkipsTheDead) {
  ReplicaRouter router(3, ReplicaPolicy::kRoundRobin);
  std::vector<int> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(*router.choose({}, {true, true, true}));
  EXPECT_EQ(taken, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  taken.clear();
  for (int i = 0; i < 4; ++i) taken.push_back(*router.choose({}, {true, false, true}));
  EXPECT_EQ(taken, (std::vector<int>{0, 2, 0, 2}));
  EXPECT_EQ(router.choose({}, {false, false, false}), std::nullopt);
}

TEST(ReplicaRouter, LeastRequestsAndLeastTokensLookAtOneNumberEach) {
  for (ReplicaPolicy policy : {ReplicaPolicy::kLeastRequests, ReplicaPolicy::kLeastTokens}) {
    ReplicaRouter router(2, policy);
    router.begin(0, {}, 1000);  // one long one here, two short ones there
    router.begin(1, {}, 10);
    router.begin(1, {}, 10);
    EXPECT_EQ(router.choose({}, kBoth), policy == ReplicaPolicy::kLeastRequests ? 0 : 1);
    router.grow(1, 2000);
    EXPECT_EQ(router.choose({}, kBoth), 0);
    router.end(1, 2010);
    router.end(1, 10);
    EXPECT_EQ(router.load(1).requests, 0);
    EXPECT_EQ(router.load(1).tokens, 0);
    EXPECT_EQ(router.choose({}, kBoth), 1);
    EXPECT_EQ(router.choose({}, {true, false}), 0);
  }
}

TEST(ReplicaRouter, EqualLoadsAreSpread) {
  for (ReplicaPolicy policy :
       {ReplicaPolicy::kLeastRequests, ReplicaPolicy::kLeastTokens, ReplicaPolicy::kPrefixAware}) {
    ReplicaRouter router(4, policy);
    std::map<int, int> taken;
    for (int i = 0; i < 40; ++i) ++taken[*router.choose({}, std::vector<bool>(4, true))];
    for (const auto& [replica, count] : taken) EXPECT_EQ(count, 10) << replica;
  }
}

TEST(ReplicaRouter, PrefixAwareGoesWhereThePromptIs) {
  ReplicaRouter router(2, ReplicaPolicy::kPrefixAware);
  const Tokens a = tokens_of(0, 160), b = tokens_of(5000, 160);
  router.begin(0, prefix(a), 160), router.end(0, 160);
  router.begin(1, prefix(b), 160), router.end(1, 160);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(router.choose(prefix(a), kBoth), 0);
    EXPECT_EQ(router.choose(prefix(b), kBoth), 1);
  }
  EXPECT_EQ(router.choose(prefix(a), {false, true}), 1);
  // Another namespace shares nothing: both take turns.
  std::map<int, int> taken;
  for (int i = 0; i < 10; ++i) ++taken[*router.choose(prefix(a, "salt"), kBoth)];
  EXPECT_EQ(taken[0], 5);
  // A replica that was restarted knows nothing.
  router.forget(0);
  taken.clear();
  for (int i = 0; i < 10; ++i) ++taken[*router.choose(prefix(a), kBoth)];
  EXPECT_EQ(taken[0], 5);
  EXPECT_EQ(router.choose(prefix(b), kBoth), 1);
}

TEST(ReplicaRouter, AShortMatchIsNotWorthIt) {
  ReplicaRouter router(2, ReplicaPolicy::kPrefixAware);
  Tokens prompt = tokens_of(0, 160);
  router.begin(0, prefix(prompt), 160);
  router.begin(1, prefix(tokens_of(9000, 16)), 16), router.end(1, 16);
  Tokens three = tokens_of(0, 48), four = tokens_of(0, 64);
  three.resize(160, 77), four.resize(160, 77);
  EXPECT_EQ(router.choose(prefix(three), kBoth), 1);  // 3 of 10 pages: not more than the threshold
  EXPECT_EQ(router.choose(prefix(four), kBoth), 0);
}

TEST(ReplicaRouter, TheGuardSendsTheCrowdElsewhere) {
  ReplicaRouter router(2, ReplicaPolicy::kPrefixAware);
  const Tokens prompt = tokens_of(0, 160);
  int at_first = 0, at_second = 0;
  for (int i = 0; i < 20; ++i) {
    const int replica = *router.choose(prefix(prompt), kBoth);
    router.begin(replica, prefix(prompt), 160);
    const bool first_elsewhere = replica == 1 && at_second == 0 && at_first > 0;
    EXPECT_TRUE(!first_elsewhere || at_first > kBalanceAbs) << at_first;
    (replica == 0 ? at_first : at_second) += 1;
  }
  EXPECT_EQ(at_first + at_second, 20);
  EXPECT_LE(std::abs(at_first - at_second), 2 * kBalanceAbs);
}

TEST(ReplicaRouter, WhatIsRememberedIsBounded) {
  constexpr std::size_t kPages = 100;
  ReplicaRouter router(2, ReplicaPolicy::kPrefixAware, kPages);
  for (int32_t i = 0; i < 1000; ++i) router.begin(0, prefix(tokens_of(i * 1000, 160)), 160), router.end(0, 160);
  EXPECT_EQ(router.remembered_pages(), kPages);
  router.begin(1, prefix(tokens_of(0, 32)), 32), router.end(1, 32);
  EXPECT_EQ(router.choose(prefix(tokens_of(999'000, 160)), kBoth), 0);  // the last one stays known
  const Tokens huge(kMaxRouterPagesPerPrompt * kRouterPageTokens * 2, 1);
  EXPECT_EQ(prefix(huge).size(), kMaxRouterPagesPerPrompt);
}

// Random requests that share prefixes, live and end, while replicas come and go. The model remembers for each replica
// every prompt that it was given since its last start.
TEST(ReplicaRouter, PrefixAwareEqualsAModelThatForgetsNothing) {
  constexpr int kReplicas = 3;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](int32_t n) { return static_cast<int32_t>(random() % static_cast<unsigned>(n)); };
    ReplicaRouter router(kReplicas, ReplicaPolicy::kPrefixAware);
    std::vector<std::vector<Tokens>> given(kReplicas);
    std::vector<std::pair<int, int64_t>> live;
    for (int step = 0; step < 400; ++step) {
      Tokens prompt = tokens_of(draw(3) * 1000, 16 * (1 + draw(8)));
      const Tokens tail = tokens_of(100'000 + draw(4) * 1000, 16 * draw(6) + draw(16));
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      std::vector<bool> serves(kReplicas);
      for (int i = 0; i < kReplicas; ++i) serves[static_cast<std::size_t>(i)] = draw(8) > 0;
      const auto chosen = router.choose(prefix(prompt), serves);
      if (std::count(serves.begin(), serves.end(), true) == 0) {
        EXPECT_EQ(chosen, std::nullopt);
        continue;
      }
      ASSERT_TRUE(chosen.has_value());
      ASSERT_TRUE(serves[static_cast<std::size_t>(*chosen)]);
      const auto matched = [&](int replica) {
        std::size_t best = 0;
        for (const Tokens& other : given[static_cast<std::size_t>(replica)]) {
          const auto [at, end] = std::mismatch(prompt.begin(), prompt.end(), other.begin(), other.end());
          const std::size_t full_pages = std::min(prompt.size() / 16, other.size() / 16);
          best = std::max(best, std::min<std::size_t>(static_cast<std::size_t>(at - prompt.begin()) / 16, full_pages));
        }
        return static_cast<double>(best) > kCacheThreshold * static_cast<double>(prompt.size() / 16) ? best : 0;
      };
      int64_t least = 1 << 30, most = 0;
      std::size_t longest = 0;
      for (int i = 0; i < kReplicas; ++i) {
        if (!serves[static_cast<std::size_t>(i)]) continue;
        least = std::min(least, router.load(i).requests), most = std::max(most, router.load(i).requests);
        longest = std::max(longest, matched(i));
      }
      const bool crowded =
          most - least > kBalanceAbs && static_cast<double>(most) > kBalanceRel * static_cast<double>(least);
      if (crowded || longest == 0) {
        EXPECT_EQ(router.load(*chosen).requests, least);
      } else {
        EXPECT_EQ(matched(*chosen), longest);
      }
      router.begin(*chosen, prefix(prompt), 5);
      given[static_cast<std::size_t>(*chosen)].push_back(prompt);
      live.emplace_back(*chosen, 5);
      while (!live.empty() && draw(3) > 0) {
        router.end(live.back().first, live.back().second);
        live.pop_back();
      }
      if (draw(60) == 0) {
        const int restarted = draw(kReplicas);
        router.forget(restarted);
        given[static_cast<std::size_t>(restarted)].clear();
      }
    }
    for (const auto& [replica, tokens] : live) router.end(replica, tokens);
    for (int i = 0; i < kReplicas; ++i) EXPECT_EQ(router.load(i).requests + router.load(i).tokens, 0);
  }
}

}  // namespace
}  // namespace millrace
