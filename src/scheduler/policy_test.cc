// The orders of the policies, their bounds on overtaking, preemption, and what they cost.
#include "scheduler/policy.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::predict;
using testing::prompt;

constexpr Policy kAll[] = {Policy::kFcfs, Policy::kLpm,    Policy::kDfsWeight,
                           Policy::kLof,  Policy::kRandom, Policy::kPriority};

SchedulerOptions with_policy(Policy policy, int32_t running = kMaxRunningRequests) {
  SchedulerOptions options;
  options.policy = policy;
  options.max_running_requests = running;
  return options;
}

// The order in which requests got their first token.
std::vector<uint64_t> first_tokens(const Harness& h, uint64_t from) {
  std::vector<std::pair<uint64_t, uint64_t>> at;
  for (const auto& [id, outcome] : h.outcomes) {
    if (id >= from) at.emplace_back(outcome.at_steps.at(0), id);
  }
  std::ranges::sort(at);
  std::vector<uint64_t> ids;
  for (const auto& [step, id] : at) ids.push_back(id);
  return ids;
}

TEST(Policy, NamesAreParsedAndWrongOnesListed) {
  for (Policy policy : kAll) EXPECT_EQ(parse_policy(policy_name(policy)).value(), policy);
  EXPECT_EQ(parse_policy("LPM").status().message(),
            "the schedule policy is 'LPM'; wanted fcfs, lpm, dfs-weight, lof, random or priority");
}

// One request runs at a time; the others are ready when it ends.
TEST(Policy, EachServesItsOrder) {
  struct Case {
    Policy policy;
    std::vector<uint64_t> order;
  };
  const Case cases[] = {{Policy::kFcfs, {10, 11, 12, 13}},
                        {Policy::kLof, {12, 10, 13, 11}},
                        {Policy::kPriority, {13, 11, 10, 12}},
                        {Policy::kLpm, {13, 12, 10, 11}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(policy_name(c.policy));
    Harness h(kRoomy, with_policy(c.policy, 1), endless());
    h.receive(Harness::request(1, prompt(100), 2));  // 13 and 12 have more or less of its prefix
    h.step();
    const auto send = [&](uint64_t id, std::vector<int32_t> tokens, int32_t max_tokens, int32_t priority) {
      wire::TokenizedRequest request = Harness::request(id, std::move(tokens), max_tokens);
      request.priority = priority;
      h.receive(request);
    };
    send(10, prompt(20, 300), 5, 0);
    send(11, prompt(20, 400), 2, 1);
    send(12, prompt(33), 9, -1);
    send(13, prompt(90), 3, 7);
    h.run();
    EXPECT_EQ(first_tokens(h, 10), c.order);
    h.expect_clean_end();
  }
}

TEST(Policy, RandomIsTheSameForTheSameSeedAndNotTheOrderOfArrival) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed : {1, 1, 2, 3, 4}) {
    SchedulerOptions options = with_policy(Policy::kRandom, 1);
    options.policy_seed = seed;
    Harness h(kRoomy, options, endless());
    for (uint64_t id = 1; id <= 9; ++id) h.receive(Harness::request(id, prompt(4, static_cast<int32_t>(9 * id)), 2));
    h.run();
    orders.insert(first_tokens(h, 1));
  }
  EXPECT_EQ(orders.size(), 4u);
}

// ---- dfs-weight -----------------------------------------------------------------------------------------------------

struct Waiting {
  explicit Waiting(const std::vector<std::pair<std::vector<int32_t>, int32_t>>& prefixes) {
    for (const auto& [tokens, matched] : prefixes) {
      all.push_back(std::make_unique<Sequence>());
      all.back()->tokens = tokens;
      all.back()->look.matched = matched;
      all.back()->arrival = all.size();
      order.push_back(all.back().get());
    }
  }
  std::vector<uint64_t> arrivals() const {
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : order) ids.push_back(sequence->arrival);
    return ids;
  }
  std::vector<std::unique_ptr<Sequence>> all;
  std::vector<Sequence*> order;
};

//        (root) 5
//        /     \             1 [1 1]   2 [1 1 2]   3 [1 1 2]   4 [9]   5 nothing cached   6 [1 1 3]
//     [1 1] 1   [9] 4
//     /   \                                                                                      .
//  [2] 2 3  [3] 6
TEST(DfsWeight, HeaviestSubtreeFirstAndChildrenBeforeTheirParent) {
  Waiting w({{{1, 1, 7}, 2}, {{1, 1, 2}, 3}, {{1, 1, 2, 8}, 3}, {{9, 9}, 1}, {{1, 1}, 0}, {{1, 1, 3}, 3}});
  order_depth_first(w.order);
  EXPECT_EQ(w.arrivals(), (std::vector<uint64_t>{2, 3, 6, 1, 4, 5}));
}

// The definition itself, on a trie with one token an edge, which nobody would build for real.
struct Trie {
  std::map<int32_t, Trie> children;
  std::vector<uint64_t> own;
  int weight = 0;
  uint64_t oldest = UINT64_MAX;
  void walk(std::vector<uint64_t>& out) const {
    std::vector<const Trie*> order;
    for (const auto& [token, child] : children) order.push_back(&child);
    std::ranges::sort(order, [](const Trie* a, const Trie* b) {
      return a->weight != b->weight ? a->weight > b->weight : a->oldest < b->oldest;
    });
    for (const Trie* child : order) child->walk(out);
    out.insert(out.end(), own.begin(), own.end());
  }
};

TEST(DfsWeight, EqualsATrieForRandomPrefixes) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::pair<std::vector<int32_t>, int32_t>> prefixes;
    Trie root;
    for (uint64_t arrival = 1; arrival <= 1 + random() % 20; ++arrival) {
      std::vector<int32_t> tokens(1 + random() % 6);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3);
      const auto matched = static_cast<int32_t>(random() % tokens.size());
      Trie* node = &root;
      for (int32_t i = 0; i < matched; ++i) {
        node = &node->children[tokens[static_cast<std::size_t>(i)]];
        ++node->weight;
        node->oldest = std::min(node->oldest, arrival);
      }
      node->own.push_back(arrival);
      prefixes.emplace_back(tokens, matched);
    }
    Waiting w(prefixes);
    order_depth_first(w.order);
    std::vector<uint64_t> expected;
    root.walk(expected);
    ASSERT_EQ(w.arrivals(), expected) << "round " << round;
  }
}

// ---- no policy starves ----------------------------------------------------------------------------------------------

// Invariant: the oldest is overtaken by at most max_skips, whatever the policy. Counted here, from the outside.
TEST(Fairness, TheOldestIsOvertakenABoundedNumberOfTimes) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 600; ++round) {
    const auto max_skips = static_cast<int32_t>(random() % 6);
    WaitingQueue queue(max_skips, kAll[round % 6], random());
    std::map<uint64_t, std::unique_ptr<Sequence>> waiting;
    uint64_t next = 0;
    int32_t overtaken = 0;  // of the oldest, since it is
    for (int pass = 0; pass < 60; ++pass) {
      for (uint64_t k = random() % 5; k > 0; --k) {
        auto sequence = std::make_unique<Sequence>();
        sequence->arrival = next++;
        sequence->priority = static_cast<int32_t>(random() % 50);
        sequence->sampling.max_tokens = static_cast<int32_t>(random() % 50);
        sequence->tokens.assign(20, static_cast<int32_t>(random() % 4));
        queue.push(*sequence);
        waiting.emplace(sequence->arrival, std::move(sequence));
      }
      std::vector<std::unique_ptr<Sequence>> gone;
      const auto admit = [&](Sequence& sequence) {
        if (random() % 4 == 0) return Admission::kNoRoom;
        if (random() % 9 == 0) return Admission::kStop;
        const bool is_oldest = waiting.begin()->first == sequence.arrival;
        overtaken = is_oldest ? 0 : overtaken + 1;
        EXPECT_LE(overtaken, max_skips);
        auto node = waiting.extract(sequence.arrival);
        gone.push_back(std::move(node.mapped()));
        return Admission::kAdmitted;
      };
      queue.offer(admit, [&](Sequence& s) { s.look.matched = static_cast<int32_t>(random() % 20); });
      ASSERT_FALSE(HasFailure()) << "round " << round;
    }
    ASSERT_EQ(queue.size(), static_cast<int32_t>(waiting.size()));
  }
}

// An endless stream of requests that the policy likes better than the one that waits.
TEST(Fairness, NobodyStarvesUnderAStreamOfBetterRequests) {
  for (Policy policy : kAll) {
    SCOPED_TRACE(policy_name(policy));
    SchedulerOptions options = with_policy(policy, 2);
    options.max_skips = 4;
    Harness h(kRoomy, options, endless());
    h.receive(Harness::request(1, prompt(64), 3));  // what the stream has cached
    h.run();
    const auto better = [&](uint64_t id) {
      wire::TokenizedRequest request = Harness::request(id, prompt(64), 30);
      request.priority = 100;
      h.receive(request);
    };
    uint64_t id = 100;
    for (int i = 0; i < 6; ++i) better(id++);
    h.step();
    h.receive(Harness::request(2, prompt(40, 700), 3));
    int turns = 0;
    for (; !h.outcomes.at(2).finish && turns < 3000; ++turns) {
      if (turns % 10 == 0) better(id++);
      h.step();
    }
    EXPECT_TRUE(h.outcomes.at(2).finish) << "starved";
    EXPECT_EQ(h.outcomes.at(2).tokens.size(), 3u);
    h.run();
    h.expect_clean_end();
  }
}

// ---- preemption -----------------------------------------------------------------------------------------------------

wire::TokenizedRequest of_priority(uint64_t id, int32_t priority, int32_t length, int32_t max_tokens) {
  wire::TokenizedRequest request = Harness::request(id, prompt(length, static_cast<int32_t>(id * 60)), max_tokens);
  request.priority = priority;
  return request;
}

TEST(Preemption, TakesThePlaceOfTheLowestAndNewestOverTheGapOnly) {
  for (int32_t priority : {10, 11}) {
    Harness h(kRoomy, with_policy(Policy::kPriority, 3), endless());
    for (uint64_t id : {1, 2, 3}) h.receive(of_priority(id, id == 1 ? 5 : 0, 20, 40));
    for (int i = 0; i < 5; ++i) h.step();
    const uint64_t at = h.scheduler.facts().steps;
    h.receive(of_priority(9, priority, 20, 5));
    h.run();
    const bool preempts = priority - 0 > kPriorityPreemptionGap;
    EXPECT_EQ(h.scheduler.facts().preempted, preempts ? 1u : 0u);
    EXPECT_EQ(h.outcomes.at(3).usage.retractions, preempts ? 1 : 0);  // the newest of the lowest
    EXPECT_EQ(h.outcomes.at(1).usage.retractions + h.outcomes.at(2).usage.retractions, 0);
    if (preempts) {
      EXPECT_LE(h.outcomes.at(9).at_steps.at(0), at + 4);
    }
    for (uint64_t id : {1, 2, 3}) {
      EXPECT_EQ(h.outcomes.at(id).tokens, predict(of_priority(id, 0, 20, 40), endless(), 1, 256).tokens);
    }
    h.expect_clean_end();
  }
}

TEST(Preemption, FreesAsManyPagesAsAreNeededAndNoMore) {
  SchedulerOptions options = with_policy(Policy::kPriority);
  options.conservativeness = 0;
  Harness h({1000, 256, 4, 30}, options, endless());
  for (uint64_t id : {1, 2, 3, 4}) h.receive(of_priority(id, 0, 20, 6));  // 5 or 6 pages each
  h.step(), h.step();
  h.receive(of_priority(9, 50, 40, 4));  // 10 pages and more
  h.run();
  EXPECT_GE(h.scheduler.facts().preempted, 1u);
  EXPECT_LE(h.scheduler.facts().preempted, 2u);
  EXPECT_EQ(h.outcomes.at(1).usage.retractions, 0);
  EXPECT_LT(h.outcomes.at(9).at_steps.at(0), h.outcomes.at(4).at_steps.back());
  h.expect_clean_end();
}

// The cached prefix of a request is what it does not need, and no room for the rest of it.
TEST(Preemption, ACachedPrefixCountsOnce) {
  SchedulerOptions options = with_policy(Policy::kPriority);
  options.conservativeness = 0;
  Harness h({1000, 256, 4, 31}, options, endless());
  h.receive(Harness::request(9, prompt(41, 500), 1));
  h.run();
  EXPECT_EQ(h.scheduler.facts().pages_cached, 10);
  for (uint64_t id : {1, 2, 3}) h.receive(of_priority(id, 0, 20, 6));  // 5 or 6 pages each
  h.step(), h.step();
  std::vector<int32_t> tokens = prompt(40, 500);
  tokens.resize(60, 7);  // 5 pages more, and fewer are free
  wire::TokenizedRequest urgent = Harness::request(10, std::move(tokens), 2);
  urgent.priority = 50;
  h.receive(urgent);
  h.run();
  EXPECT_EQ(h.outcomes.at(10).usage.cached_tokens, 40);
  EXPECT_EQ(h.scheduler.facts().preempted, 1u);
  EXPECT_EQ(h.outcomes.at(3).usage.retractions, 1);
  EXPECT_LT(h.outcomes.at(10).at_steps.at(0), h.outcomes.at(1).at_steps.back());
  h.expect_clean_end();
}

// What a victim shares with the request does not come free for it.
TEST(Preemption, NoneGivesWayWhereOnlySharedPagesWouldComeFree) {
  SchedulerOptions options = with_policy(Policy::kPriority);
  options.conservativeness = 0;
  Harness h({1000, 256, 4, 30}, options, endless());
  std::vector<int32_t> shared = prompt(40, 500);
  shared.resize(42, 7);
  h.receive(Harness::request(1, shared, 8));
  h.receive(of_priority(2, 45, 40, 8));  // within the gap
  h.step(), h.step();
  std::vector<int32_t> tokens = prompt(40, 500);
  tokens.resize(88, 8);  // 12 pages more; without request 1 there would be 10 at most
  wire::TokenizedRequest urgent = Harness::request(3, std::move(tokens), 2);
  urgent.priority = 50;
  h.receive(urgent);
  h.run();
  EXPECT_EQ(h.scheduler.facts().preempted, 0u);
  EXPECT_EQ(h.outcomes.at(3).usage.cached_tokens, 40);
  EXPECT_EQ(h.outcomes.at(3).tokens.size(), 2u);
  h.expect_clean_end();
}

// Invariant: a request gives way at most kMaxPreemptions times.
TEST(Preemption, NobodyGivesWayForEver) {
  Harness h(kRoomy, with_policy(Policy::kPriority, 1), endless());
  h.receive(of_priority(1, 0, 20, 30));
  uint64_t id = 10;
  for (int turn = 0; !h.outcomes.at(1).finish && turn < 2000; ++turn) {
    if (turn % 6 == 0) h.receive(of_priority(id, 100, 5, 2)), ++id;
    h.step();
  }
  EXPECT_EQ(h.outcomes.at(1).usage.retractions, kMaxPreemptions);
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 30u);
  h.run();
  h.expect_clean_end();
}

TEST(Preemption, OtherPoliciesDoNotPreempt) {
  for (Policy policy : kAll) {
    if (policy == Policy::kPriority) continue;
    Harness h(kRoomy, with_policy(policy, 1), endless());
    h.receive(of_priority(1, 0, 20, 30));
    h.step();
    h.receive(of_priority(2, 100, 20, 30));
    h.run();
    EXPECT_EQ(h.scheduler.facts().preempted, 0u);
  }
}

TEST(FullQueue, GivesThePlaceOfTheWorstToAStrictlyBetterOne) {
  SchedulerOptions options = with_policy(Policy::kPriority, 1);
  options.max_queued_requests = 2;
  options.priority_preemption_gap = 1000;
  Harness h(kRoomy, options, endless());
  h.receive(of_priority(1, 0, 4, 20));
  h.step();
  h.receive(of_priority(2, 3, 4, 2)), h.receive(of_priority(3, 3, 4, 2));
  h.receive(of_priority(4, 3, 4, 2));  // no better than the worst
  EXPECT_EQ(h.outcomes.at(4).finish->code, StatusCode::kResourceExhausted);
  h.receive(of_priority(5, 4, 4, 2));
  EXPECT_EQ(h.outcomes.at(3).finish->code, StatusCode::kUnavailable);  // the newest of the worst
  EXPECT_EQ(h.outcomes.at(3).finish->message,
            "the queue is full (2 requests) and one of priority 4 came; this one has priority 3; try again later");
  h.run();
  EXPECT_EQ(h.outcomes.at(2).tokens.size() + h.outcomes.at(5).tokens.size(), 4u);
  EXPECT_EQ(h.scheduler.facts().dropped, 1u);
  h.expect_clean_end();
}

// ---- cost -----------------------------------------------------------------------------------------------------------

// Invariant: a request that does not fit is not matched anew in each step.
TEST(Cost, ARequestThatDoesNotFitIsNotLookedUpInEveryStep) {
  for (Policy policy : {Policy::kFcfs, Policy::kLpm, Policy::kPriority}) {
    SchedulerOptions options = with_policy(policy);
    options.conservativeness = 0;
    Harness h({1000, 2000, 16, 40}, options, endless());
    h.receive(Harness::request(1, prompt(300), 300));
    h.step();
    for (uint64_t id = 2; id <= 31; ++id)
      h.receive(Harness::request(id, prompt(500, static_cast<int32_t>(id * 30)), 1));
    h.step();
    const uint64_t before = h.scheduler.facts().look_ups;
    for (int i = 0; i < 200; ++i) h.step();
    EXPECT_EQ(h.scheduler.facts().waiting, 30);
    EXPECT_LE(h.scheduler.facts().look_ups - before, 40u);
    h.run();
    h.expect_clean_end();
  }
}

TEST(Cost, AnOrderByMatchLooksAtSoManyOfALongQueue) {
  Harness h(kRoomy, with_policy(Policy::kLpm, 1), endless());
  for (uint64_t id = 1; id <= 900; ++id) h.receive(Harness::request(id, prompt(20, static_cast<int32_t>(id)), 1));
  uint64_t last = 0;
  for (int i = 0; i < 50; ++i) {
    h.step();
    EXPECT_LE(h.scheduler.facts().look_ups - last, 2u * kOrderWindow);
    last = h.scheduler.facts().look_ups;
  }
}

}  // namespace
}  // namespace millrace
