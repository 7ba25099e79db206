// Two batches in flight: a batch that waits for the tokens of the one before it gives the same bits as one at a time,
// whatever the batches look like; rows whose token never comes fail alone; the runner's clocks tell the truth.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "runner/testing/logprobs_testing.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kPageSize = 4;

struct Request {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
  SamplingSpec sampling;

  std::vector<int32_t> pages;
  int32_t done = 0;  // tokens submitted
  int drawn = 0;     // tokens submitted to be drawn
  std::vector<SampledToken> tokens;
};

std::vector<Request> make_requests(const ModelConfig& config, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Request> requests(12);
  int32_t page = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.new_tokens = 1 + static_cast<int>(random() % 12);
    const unsigned length = 1 + random() % 20;
    for (unsigned t = 0; t < length; ++t) {
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(config.vocab_size)));
    }
    request.sampling.temperature = i % 3 ? 0.9 : 0.0;
    request.sampling.seed = i;
    request.sampling.top_logprobs = i % 2 ? 3 : -1;
    if (i % 2) request.sampling.frequency_penalty = 1.5;
    if (i % 4 == 2) request.sampling.repetition_penalty = 1.4;
    for (int32_t t = 0; t < 32; t += kPageSize) request.pages.push_back(page++);
  }
  return requests;
}

// The next step of a request, of `count` tokens at most. Tokens not settled yet stand in flight.
SequenceStep next_step(Request& request, uint64_t id, int32_t count) {
  SequenceStep step;
  step.request = ReqId{id};
  step.position = request.done;
  step.pages = request.pages;
  step.sampling = request.sampling;
  const auto prompt = static_cast<int32_t>(request.prompt.size());
  const auto token = [&](int32_t at) {
    if (at < prompt) return request.prompt[static_cast<std::size_t>(at)];
    const auto drawn = static_cast<std::size_t>(at - prompt);
    return drawn < request.tokens.size() ? request.tokens[drawn].token : kTokenInFlight;
  };
  const int32_t end = std::min(request.done + count, prompt + request.drawn);
  for (; request.done < end; ++request.done) step.tokens.push_back(token(request.done));
  step.sample = request.done == prompt + request.drawn;
  if (step.sample && step.sampling.penalizes()) {
    std::vector<int32_t> generated;
    for (int32_t at = prompt; at + 1 < request.done; ++at) generated.push_back(token(at));
    step.generated = std::move(generated);
    step.last_is_generated = request.done > prompt;
  }
  request.drawn += step.sample;
  return step;
}

Batch random_batch(std::vector<Request>& requests, uint64_t step, std::mt19937& random) {
  Batch batch{.step = step};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].drawn == requests[i].new_tokens || random() % 3 == 0) continue;
    batch.sequences.push_back(next_step(requests[i], i, 1 + static_cast<int32_t>(random() % 12)));
  }
  std::shuffle(batch.sequences.begin(), batch.sequences.end(), random);
  return batch;
}

class InFlightTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
    ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
    dir_ = dirs.front();
    auto model = load_model_dir(dir_, 3);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    options_.threads = 2;
    options_.page_size = kPageSize;
    options_.page_count = 12 * 8;
    options_.poison_pages = true;
  }
  std::unique_ptr<ModelRunner> make() { return ModelRunner::make(model_, options_).value(); }

  static BatchResult wait(Runner& runner) {
    std::optional<BatchResult> result;
    while (!result) result = runner.poll(1000);
    return std::move(*result);
  }
  static void settle(std::vector<Request>& requests, const BatchResult& result) {
    ASSERT_TRUE(result.status.ok()) << result.status.to_string();
    for (const SampledToken& token : result.tokens) {
      ASSERT_TRUE(token.status.ok()) << token.status.to_string();
      requests[token.request.value].tokens.push_back(token);
    }
  }
  static SequenceStep step(uint64_t id, std::vector<int32_t> tokens, int32_t position) {
    SequenceStep step;
    step.request = ReqId{id};
    step.tokens = std::move(tokens);
    step.position = position;
    step.pages = {static_cast<int32_t>(2 * id), static_cast<int32_t>(2 * id + 1)};
    step.sample = true;
    step.sampling.temperature = 0;
    return step;
  }
  // Both in flight together: the first is held on the compute thread until the second is submitted.
  static std::pair<BatchResult, BatchResult> run_two(Runner& runner, std::promise<void>& gate, Batch one, Batch two) {
    EXPECT_TRUE(runner.submit(std::move(one)).ok());
    EXPECT_TRUE(runner.submit(std::move(two)).ok());
    gate.set_value();
    BatchResult first = wait(runner);
    return {std::move(first), wait(runner)};
  }

  std::string dir_;
  std::shared_ptr<const Model> model_;
  RunnerOptions options_;
};

TEST_F(InFlightTest, TokensAndLogprobsAreThoseOfOneBatchAtATime) {
  int waited = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    auto alone = make_requests(model_->config(), seed);
    auto runner = make();
    for (std::size_t i = 0; i < alone.size(); ++i) {
      while (alone[i].drawn < alone[i].new_tokens) {
        ASSERT_TRUE(runner->submit({.sequences = {next_step(alone[i], i, 100)}}).ok());
        settle(alone, wait(*runner));
      }
    }
    auto together = make_requests(model_->config(), seed);
    std::mt19937 random(seed);
    int in_flight = 0;
    for (uint64_t number = 1;; ++number) {
      Batch batch = random_batch(together, number, random);
      const bool all_planned =
          std::all_of(together.begin(), together.end(), [](const Request& r) { return r.drawn == r.new_tokens; });
      for (const SequenceStep& s : batch.sequences) {
        waited += s.tokens.back() == kTokenInFlight;
      }
      ASSERT_TRUE(runner->submit(std::move(batch)).ok());
      if (++in_flight == kModelRunnerDepth) {
        settle(together, wait(*runner));
        --in_flight;
      }
      if (all_planned) break;
    }
    for (; in_flight > 0; --in_flight) settle(together, wait(*runner));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(together[i].tokens.size(), alone[i].tokens.size());
      for (std::size_t t = 0; t < alone[i].tokens.size(); ++t) {
        ASSERT_EQ(together[i].tokens[t].token, alone[i].tokens[t].token) << "seed " << seed << " request " << i;
        const auto &a = together[i].tokens[t].logprobs, &b = alone[i].tokens[t].logprobs;
        ASSERT_EQ(a.has_value(), b.has_value());
        ASSERT_TRUE(!a || same(*a, *b)) << "seed " << seed << " request " << i;
      }
    }
  }
  EXPECT_GT(waited, 200) << "the test wants tokens in flight";
}

TEST_F(InFlightTest, AChunkMayEndWithTheTokenInFlight) {
  auto runner = make();
  // KV of [1, 2] is written by neither batch before: the second computes them anew with the token behind them.
  ASSERT_TRUE(runner->submit({.step = 1, .sequences = {step(0, {1, 2}, 0)}}).ok());
  ASSERT_TRUE(runner->submit({.step = 2, .sequences = {step(0, {1, 2, kTokenInFlight}, 0)}}).ok());
  const int32_t first = wait(*runner).tokens[0].token;
  const BatchResult second = wait(*runner);
  ASSERT_TRUE(second.status.ok() && second.tokens[0].status.ok());
  ASSERT_TRUE(runner->submit({.step = 3, .sequences = {step(1, {1, 2, first}, 0)}}).ok());
  EXPECT_EQ(wait(*runner).tokens[0].token, second.tokens[0].token);
}

TEST_F(InFlightTest, OnlyTheLastTokenMayBeInFlight) {
  auto runner = make();
  const auto refused = [&](auto change, const std::string& words) {
    ASSERT_TRUE(runner->submit({.step = 1, .sequences = {step(0, {1}, 0)}}).ok());
    SequenceStep broken = step(0, {1, 2}, 0);
    change(broken);
    ASSERT_TRUE(runner->submit({.step = 2, .sequences = {broken}}).ok());
    EXPECT_TRUE(wait(*runner).status.ok());
    const BatchResult result = wait(*runner);
    EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(result.status.message().find(words), std::string::npos) << result.status.message();
  };
  const int32_t vocab = model_->config().vocab_size;
  refused([](auto& s) { s.tokens = {kTokenInFlight, 1}; }, "token id -1");
  refused([](auto& s) { s.tokens = {kTokenInFlight, kTokenInFlight}; }, "token id -1");
  refused([](auto& s) { s.tokens = {1, -2}; }, "token id -2");
  refused([](auto& s) { s.generated = {1, kTokenInFlight}; }, "generated id -1");
  refused([&](auto& s) { s.generated = {vocab}; }, "generated id " + std::to_string(vocab));
  refused([](auto& s) { s.score_targets = {kTokenInFlight}; }, "id to score -1");
  refused([&](auto& s) { s.score_targets = {0, vocab}; }, "id to score " + std::to_string(vocab));
  refused([](auto& s) { s.score_targets = {0, 0, 0}; }, "rows [0, 3) to score; wanted [0, 2)");
  refused(
      [](auto& s) {
        s.score_targets = {0};
        s.score_begin = 2;
      },
      "rows [2, 3) to score; wanted [0, 2)");
  refused(
      [](auto& s) {
        s.score_targets = {0};
        s.score_begin = -1;
      },
      "rows [-1, 0) to score");
}

// The row of request 1 fails in the first batch: its row of the second fails, the others do not notice.
TEST_F(InFlightTest, ARowThatFailedFailsTheRowThatWaitsForIt) {
  for (const bool poison : {false, true}) {
    std::promise<void> gate;
    auto opened = gate.get_future();
    options_.logits_hook = [&](uint64_t number, std::span<const ReqId> ids, kernels::Rows logits) {
      if (number != 1) return;
      opened.wait();
      for (std::size_t i = 0; poison && i < ids.size(); ++i) {
        if (ids[i].value == 1) logits.row(static_cast<int64_t>(i))[0] = std::numeric_limits<float>::quiet_NaN();
      }
    };
    auto runner = make();
    Batch one{.step = 1, .sequences = {step(0, {1, 2}, 0), step(1, {3}, 0), step(2, {4}, 0)}};
    Batch two{.step = 2,
              .sequences = {step(2, {kTokenInFlight}, 1), step(1, {kTokenInFlight}, 1), step(0, {kTokenInFlight}, 2),
                            step(3, {5}, 0)}};
    const auto [first, second] = run_two(*runner, gate, one, two);
    ASSERT_TRUE(second.status.ok());
    ASSERT_EQ(second.tokens.size(), 4u);
    for (const std::size_t i : {0u, 2u, 3u}) EXPECT_TRUE(second.tokens[i].status.ok());
    if (!poison) {
      EXPECT_TRUE(second.tokens[1].status.ok());
      continue;
    }
    EXPECT_EQ(second.tokens[1].request.value, 1u);
    EXPECT_EQ(second.tokens[1].status.code(), StatusCode::kInternal);
    EXPECT_NE(second.tokens[1].status.message().find("request 1 waits for its token of step 1, where its row failed"),
              std::string::npos)
        << second.tokens[1].status.message();
    // The others' tokens are those of a runner that never met the failure.
    auto clean = ModelRunner::make(model_,
                                   [&] {
                                     RunnerOptions options = options_;
                                     options.logits_hook = nullptr;
                                     return options;
                                   }())
                     .value();
    for (const std::size_t i : {0u, 2u}) {
      const SequenceStep& before = one.sequences[i];
      SequenceStep again = before;
      again.tokens.push_back(first.tokens[i].token);
      ASSERT_TRUE(clean->submit({.step = 3, .sequences = {again}}).ok());
      EXPECT_EQ(wait(*clean).tokens[0].token, second.tokens[i == 0 ? 2 : 0].token);
    }
  }
}

TEST_F(InFlightTest, AStepThatFailedFailsTheRowsThatWaitForIt) {
  auto runner = make();
  ASSERT_TRUE(runner->submit({.step = 1, .sequences = {step(0, {1}, -1)}}).ok());
  ASSERT_TRUE(runner->submit({.step = 2, .sequences = {step(0, {kTokenInFlight}, 1), step(1, {2}, 0)}}).ok());
  EXPECT_EQ(wait(*runner).status.code(), StatusCode::kInvalidArgument);
  const BatchResult second = wait(*runner);
  ASSERT_TRUE(second.status.ok());
  EXPECT_EQ(second.tokens[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(second.tokens[0].status.message().find("its token of step 1, which failed"), std::string::npos)
      << second.tokens[0].status.message();
  EXPECT_TRUE(second.tokens[1].status.ok());
}

TEST_F(InFlightTest, NoTokenIsInFlightWithoutAStepThatSamplesIt) {
  auto runner = make();
  const auto expect_alone = [&](Batch batch, const std::string& words) {
    ASSERT_TRUE(runner->submit(std::move(batch)).ok());
    const BatchResult result = wait(*runner);
    ASSERT_TRUE(result.status.ok());
    EXPECT_EQ(result.tokens[0].status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.tokens[0].status.message().find(words), std::string::npos) << result.tokens[0].status.message();
    for (std::size_t i = 1; i < result.tokens.size(); ++i) EXPECT_TRUE(result.tokens[i].status.ok());
  };
  expect_alone({.step = 1, .sequences = {step(0, {kTokenInFlight}, 0)}}, "no batch came before");
  expect_alone({.step = 2, .sequences = {step(5, {kTokenInFlight}, 0), step(0, {1}, 0)}}, "sampled none for it");
  expect_alone({.step = 3, .sequences = {step(6, {kTokenInFlight}, 0), step(1, {1}, 0)}}, "step 2, which sampled none");
  // Two steps ago is too long ago, and a chunk that does not sample leaves nothing.
  SequenceStep silent = step(2, {1}, 0);
  silent.sample = false;
  ASSERT_TRUE(runner->submit({.step = 4, .sequences = {silent, step(1, {1}, 1)}}).ok());
  EXPECT_EQ(wait(*runner).tokens.size(), 1u);
  expect_alone({.step = 5, .sequences = {step(2, {kTokenInFlight}, 1), step(1, {kTokenInFlight}, 2)}},
               "request 2 waits for its token of step 4, which sampled none");
  expect_alone({.step = 6, .sequences = {step(0, {kTokenInFlight}, 1)}}, "step 5, which sampled none");
}

TEST_F(InFlightTest, TheClocksTellComputingFromWaiting) {
  options_.logits_hook = [](uint64_t, std::span<const ReqId>, kernels::Rows) {
    std::this_thread::sleep_for(milliseconds(20));
  };
  auto runner = make();
  ASSERT_TRUE(runner->submit({.step = 1, .sequences = {step(0, {1}, 0)}}).ok());
  const BatchResult first = wait(*runner);
  EXPECT_EQ(first.idle_us, 0);
  EXPECT_GE(first.compute_us, 20000);
  std::this_thread::sleep_for(milliseconds(30));
  ASSERT_TRUE(runner->submit({.step = 2, .sequences = {step(0, {2}, 1)}}).ok());
  EXPECT_GE(wait(*runner).idle_us, 30000);
  // A batch that is queued behind another one waits for it, 20 ms here, and the thread is not idle meanwhile. The
  // quickest of ten: a busy machine may hold the thread up between the two.
  int64_t quickest = 1 << 30;
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(runner->submit({.step = 3, .sequences = {step(0, {3}, 0)}}).ok());
    ASSERT_TRUE(runner->submit({.step = 4, .sequences = {step(1, {4}, 0)}}).ok());
    (void)wait(*runner);
    quickest = std::min(quickest, wait(*runner).idle_us);
  }
  EXPECT_GE(quickest, 0);
  EXPECT_LT(quickest, 20000);
}

TEST_F(InFlightTest, ADropLeavesTheWeightsThatABatchInFlightNames) {
  std::promise<void> gate;
  auto opened = gate.get_future();
  options_.logits_hook = [&](uint64_t number, std::span<const ReqId>, kernels::Rows) {
    if (number == 1) opened.wait();
  };
  auto runner = make();
  ASSERT_TRUE(runner->stage(load_model_dir(dir_, 4).value()).ok());
  ASSERT_TRUE(runner->submit({.step = 1, .weight_version = 3, .sequences = {step(0, {1}, 0)}}).ok());
  ASSERT_TRUE(runner->submit({.step = 2, .weight_version = 4, .sequences = {step(1, {2}, 0)}}).ok());
  runner->drop_staged();
  gate.set_value();
  EXPECT_EQ(wait(*runner).weight_version, 3u);
  const BatchResult second = wait(*runner);
  EXPECT_TRUE(second.status.ok()) << second.status.to_string();
  EXPECT_EQ(second.weight_version, 4u);
}

TEST_F(InFlightTest, FactsTellTheWeightsInPlace) {
  auto runner = make();
  EXPECT_EQ(runner->facts().weight_version, 3u);
  ASSERT_TRUE(runner->stage(load_model_dir(dir_, 4).value()).ok());
  EXPECT_EQ(runner->facts().weight_version, 3u);
  ASSERT_TRUE(runner->serve_staged().ok());
  EXPECT_EQ(runner->facts().weight_version, 4u);
}

}  // namespace
}  // namespace millrace
