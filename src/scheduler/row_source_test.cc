// Requests whose rows come from a RowSource: none is computed before it was released, and when that was changes no
// token.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

RunnerFacts fed_facts(int32_t pages = 256) {
  RunnerFacts facts = kRoomy;
  facts.takes_row_states = true;
  facts.page_count = pages;
  return facts;
}

// How far each request was released; the runner must never see a row beyond that.
class Releaser {
 public:
  explicit Releaser(Harness& h) : h_(h) {
    h_.runner.on_submit = [this](const Batch& batch) {
      for (const SequenceStep& step : batch.sequences) {
        if (step.row_state == nullptr) continue;
        const auto end = step.position + static_cast<int32_t>(step.tokens.size());
        EXPECT_LE(end, released_[step.request.value]) << "request " << step.request.value;
      }
    };
  }

  void receive(uint64_t id, int32_t length, int32_t max_tokens, int32_t first = 1) {
    h_.receive(Harness::request(id, prompt(length, first), max_tokens), {.row_state = std::make_shared<RowState>()});
  }
  void release(uint64_t id, int32_t rows) {
    released_[id] = std::max(released_[id], rows);
    h_.scheduler.release_rows(ReqId{id}, rows);
  }

 private:
  Harness& h_;
  std::map<uint64_t, int32_t> released_;
};

std::vector<int32_t> alone(uint64_t id, int32_t length, int32_t max_tokens, int32_t first = 1) {
  Harness h(fed_facts(), {}, endless());
  h.receive(Harness::request(id, prompt(length, first), max_tokens));
  h.run();
  return h.outcomes.at(id).tokens;
}

TEST(RowSource, NoRowIsComputedBeforeItIsReleased) {
  Harness h(fed_facts(), {}, endless());
  Releaser rows(h);
  rows.receive(1, 20, 8);
  h.run();
  EXPECT_TRUE(h.scheduler.busy());
  EXPECT_TRUE(h.outcomes.at(1).tokens.empty());
  rows.release(1, 12);  // a part of the prompt
  h.run();
  EXPECT_TRUE(h.outcomes.at(1).tokens.empty());
  rows.release(1, 20);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 1u);
  rows.release(1, 23);
  rows.release(1, 21);  // no fewer than before
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 4u);
  rows.release(1, INT32_MAX);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).tokens, alone(1, 20, 8));
  h.expect_clean_end();
}

TEST(RowSource, OneThatWaitsHoldsNoOtherUp) {
  Harness h(fed_facts(), {}, endless());
  Releaser rows(h);
  rows.receive(1, 20, 8);
  rows.release(1, 21);
  h.receive(Harness::request(2, prompt(30, 100), 12));
  h.run();
  EXPECT_EQ(h.outcomes.at(2).tokens, alone(2, 30, 12, 100));
  EXPECT_EQ(h.outcomes.at(1).tokens.size(), 2u);
  h.abort(1);
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->reason, wire::FinishReason::kAborted);
  h.expect_clean_end();
}

TEST(RowSource, ItsTimeEndsWhileItWaits) {
  int64_t now_us = 0;
  SchedulerOptions options;
  options.now_us = [&] { return now_us; };
  Harness h(fed_facts(), options, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 8);
  request.timeout_ms = 50;
  h.receive(request, {.row_state = std::make_shared<RowState>()});
  h.run();
  now_us = 60'000;
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kDeadline);
  h.expect_clean_end();
}

TEST(RowSource, EqualTokensShareNoPages) {
  Harness h(fed_facts(), {}, endless());
  Releaser rows(h);
  for (uint64_t id = 1; id <= 2; ++id) {
    rows.receive(id, 64, 20);
    rows.release(id, INT32_MAX);
    h.run();
    EXPECT_EQ(h.outcomes.at(id).usage.cached_tokens, 0);
  }
  h.receive(Harness::request(3, prompt(64), 4));
  h.run();
  EXPECT_EQ(h.outcomes.at(3).usage.cached_tokens, 0);
  h.expect_clean_end();
}

// Random prompts, limits and pools so small that requests are retracted while they wait.
TEST(RowSource, WhenRowsAreReleasedChangesNoToken) {
  uint64_t retractions = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 draw(seed);
    const auto between = [&draw](int32_t low, int32_t high) {
      return low + static_cast<int32_t>(draw() % static_cast<uint32_t>(high - low + 1));
    };
    SchedulerOptions options;
    options.overlap = seed % 3 != 0;
    options.conservativeness = 0;
    options.chunked_prefill_tokens = between(16, 64);
    Harness h(fed_facts(8), options, endless());
    Releaser rows(h);
    std::map<uint64_t, std::pair<int32_t, int32_t>> shapes;  // length, limit
    std::map<uint64_t, int32_t> released;
    for (uint64_t id = 1; id <= 4; ++id) {
      shapes[id] = {between(1, 40), between(1, 40)};
      rows.receive(id, shapes[id].first, shapes[id].second, static_cast<int32_t>(id) * 100);
    }
    for (int round = 0; round < 200; ++round) {
      const auto id = static_cast<uint64_t>(between(1, 4));
      rows.release(id, released[id] += between(1, 12));
      for (int step = between(0, 3); step > 0; --step) h.step();
    }
    for (const auto& [id, shape] : shapes) rows.release(id, INT32_MAX);
    h.run();
    for (const auto& [id, shape] : shapes) {
      EXPECT_EQ(h.outcomes.at(id).tokens, alone(id, shape.first, shape.second, static_cast<int32_t>(id) * 100))
          << "seed " << seed << ", request " << id;
    }
    retractions += h.scheduler.facts().retractions;
    h.expect_clean_end();
  }
  EXPECT_GT(retractions, 0u);
}

TEST(RowSource, AnEngineWithoutOneRefusesIt) {
  Harness h(kRoomy, {}, endless());
  h.receive(Harness::request(1, prompt(20), 8), {.row_state = std::make_shared<RowState>()});
  h.run();
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kInternal);
}

TEST(Suppressed, TokensAreBannedInEveryStep) {
  SchedulerOptions options;
  options.suppressed_token_ids = {7, 8};
  Harness h(kRoomy, options, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(20), 6);
  request.sampling.min_tokens = 2;
  request.sampling.stop_token_ids = {9};
  std::vector<std::vector<int32_t>> banned;
  h.runner.on_submit = [&](const Batch& batch) {
    for (const SequenceStep& step : batch.sequences) {
      if (step.sample) banned.emplace_back(step.sampling.banned.begin(), step.sampling.banned.end());
    }
  };
  h.receive(request);
  h.run();
  ASSERT_GE(banned.size(), 3u);
  for (std::size_t i = 0; i < banned.size(); ++i) {
    for (const int32_t id : {7, 8}) EXPECT_EQ(std::ranges::count(banned[i], id), 1) << "step " << i;
    EXPECT_EQ(std::ranges::count(banned[i], 9), i < 2 ? 1 : 0) << "step " << i;
  }
}

}  // namespace
}  // namespace millrace
