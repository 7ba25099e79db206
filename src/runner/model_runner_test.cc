// The contract of runner.h as ModelRunner keeps it: order, limits, batches that are refused instead of crashing, rows
// that fail alone, weights that change between steps.
#include "runner/model_runner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr int32_t kPages = 32, kPageSize = 4;

class ModelRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
    ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
    dir_ = dirs.front();
    auto model = load_model_dir(dir_, 7);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    options_.threads = 2;
    options_.page_size = kPageSize;
    options_.page_count = kPages;
    options_.poison_pages = true;
  }

  std::unique_ptr<ModelRunner> make() {
    auto runner = ModelRunner::make(model_, options_);
    EXPECT_TRUE(runner.ok()) << runner.status().to_string();
    return std::move(runner).value();
  }

  // Greedy, pages 2 * id and 2 * id + 1: up to eight tokens.
  static SequenceStep sequence(uint64_t id, std::vector<int32_t> tokens, int32_t position = 0) {
    SequenceStep step;
    step.request = ReqId{id};
    step.tokens = std::move(tokens);
    step.position = position;
    step.pages = {static_cast<int32_t>(2 * id), static_cast<int32_t>(2 * id + 1)};
    step.sample = true;
    step.sampling.temperature = 0;
    return step;
  }
  static BatchResult run(Runner& runner, Batch batch) {
    const Status status = runner.submit(std::move(batch));
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::optional<BatchResult> result;
    while (status.ok() && !result) result = runner.poll(1000);
    return result.value_or(BatchResult{});
  }

  std::string dir_;
  std::shared_ptr<const Model> model_;
  RunnerOptions options_;
};

TEST_F(ModelRunnerTest, FactsComeFromTheModelAndTheOptions) {
  options_.context_length = 20;
  const RunnerFacts facts = make()->facts();
  EXPECT_EQ(facts.vocab_size, model_->config().vocab_size);
  EXPECT_EQ(facts.context_length, 20);
  EXPECT_EQ(facts.page_size, kPageSize);
  EXPECT_EQ(facts.page_count, kPages);
  EXPECT_EQ(facts.depth, 2);
  EXPECT_TRUE(facts.token_in_flight);
}

TEST_F(ModelRunnerTest, ResultsComeInOrderAndAtMostTwoAreInFlight) {
  auto runner = make();
  EXPECT_FALSE(runner->poll(0).has_value());
  ASSERT_TRUE(runner->submit({.step = 1, .sequences = {sequence(0, {1, 2, 3})}}).ok());
  ASSERT_TRUE(runner->submit({.step = 2, .sequences = {sequence(1, {4}), sequence(2, {5, 6})}}).ok());
  EXPECT_EQ(runner->submit({.step = 3}).code(), StatusCode::kResourceExhausted);
  for (const uint64_t step : {1u, 2u}) {
    std::optional<BatchResult> result;
    while (!result) result = runner->poll(1000);
    EXPECT_EQ(result->step, step);
    EXPECT_TRUE(result->status.ok());
    EXPECT_EQ(result->weight_version, 7u);
    ASSERT_EQ(result->tokens.size(), step);
    EXPECT_EQ(result->tokens[0].request.value, step - 1);
  }
  EXPECT_TRUE(run(*runner, {.step = 4}).status.ok()) << "an empty batch is a step without tokens";
  EXPECT_FALSE(runner->poll(0).has_value());
}

TEST_F(ModelRunnerTest, RowsWithoutSampleGiveNoToken) {
  auto runner = make();
  Batch batch{.step = 1, .sequences = {sequence(0, {1, 2}), sequence(1, {3}), sequence(2, {4})}};
  batch.sequences[1].sample = false;
  const BatchResult result = run(*runner, batch);
  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_EQ(result.tokens[0].request.value, 0u);
  EXPECT_EQ(result.tokens[1].request.value, 2u);
}

TEST_F(ModelRunnerTest, BrokenBatchesAreRefusedWithTheValueSeen) {
  auto runner = make();
  const int32_t vocab = model_->config().vocab_size, context = model_->config().max_position_embeddings;
  const auto with = [&](auto change) {
    Batch batch{.step = 9, .sequences = {sequence(0, {1}), sequence(1, {1, 2})}};
    change(batch.sequences[1]);
    return batch;
  };
  const std::pair<Batch, std::string> cases[] = {
      {with([](auto& s) { s.tokens.clear(); }), "no tokens"},
      {with([&](auto& s) { s.tokens[1] = vocab; }), "token id " + std::to_string(vocab)},
      {with([](auto& s) { s.tokens[0] = -1; }), "token id -1"},
      {with([](auto& s) { s.position = -1; }), "positions [-1, 1)"},
      {with([&](auto& s) { s.position = context; }), "wanted [0, " + std::to_string(context)},
      {with([](auto& s) { s.position = std::numeric_limits<int32_t>::max(); }), "positions [2147483647"},
      {with([](auto& s) { s.pages = {}; }), "0 pages for 2 tokens; wanted 1"},
      {with([](auto& s) { s.position = 7; }), "2 pages for 9 tokens; wanted 3"},
      {with([](auto& s) {
         s.pages = {kPages, 3};
       }),
       "page 32"},
      {with([](auto& s) {
         s.pages = {-1, 3};
       }),
       "page -1"},
      {with([](auto& s) {
         s.pages = {0, 3};
       }),
       "page 0 is written twice"},
  };
  for (const auto& [batch, words] : cases) {
    const BatchResult result = run(*runner, batch);
    EXPECT_EQ(result.step, 9u);
    EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(result.status.message().find(words), std::string::npos) << result.status.message();
    EXPECT_NE(result.status.message().find("request 1"), std::string::npos) << result.status.message();
    EXPECT_TRUE(result.tokens.empty());
  }
  EXPECT_TRUE(run(*runner, with([](auto&) {})).status.ok()) << "the runner goes on after refused batches";
}

TEST_F(ModelRunnerTest, AReadOnlyPageMayBeSharedInOneBatch) {
  auto runner = make();
  ASSERT_TRUE(run(*runner, {.step = 1, .sequences = {sequence(0, {1, 2, 3, 4})}}).status.ok());
  Batch batch{.step = 2, .sequences = {sequence(0, {5}, 4), sequence(1, {5}, 4)}};
  batch.sequences[1].pages = {batch.sequences[0].pages[0], batch.sequences[1].pages[1]};
  const BatchResult result = run(*runner, batch);
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(result.tokens[0].token, result.tokens[1].token);
}

// A row of NaN logits ends its own request; the rows beside it keep every bit.
TEST_F(ModelRunnerTest, NanLogitsFailTheirRowAlone) {
  bool poison = false;
  std::map<uint64_t, std::vector<float>> seen;
  options_.logits_hook = [&](uint64_t, std::span<const ReqId> requests, kernels::Rows logits) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      float* row = logits.row(static_cast<int64_t>(i));
      if (poison && requests[i].value == 1) row[3] = std::numeric_limits<float>::quiet_NaN();
      seen[requests[i].value].assign(row, row + logits.width);
    }
  };
  for (const double temperature : {0.0, 1.0}) {
    auto runner = make();
    Batch batch{.step = 1, .sequences = {sequence(0, {1, 2}), sequence(1, {3}), sequence(2, {4, 5, 6})}};
    for (auto& s : batch.sequences) s.sampling.temperature = temperature;
    poison = false;
    const BatchResult good = run(*runner, batch);
    const auto good_logits = seen;
    poison = true;
    const BatchResult bad = run(*runner, batch);
    ASSERT_TRUE(bad.status.ok());
    ASSERT_EQ(bad.tokens.size(), 3u);
    EXPECT_EQ(bad.tokens[1].status.code(), StatusCode::kInternal);
    for (const std::size_t i : {0u, 2u}) {
      EXPECT_TRUE(bad.tokens[i].status.ok());
      EXPECT_EQ(bad.tokens[i].token, good.tokens[i].token);
      EXPECT_EQ(std::memcmp(seen[i].data(), good_logits.at(i).data(), seen[i].size() * sizeof(float)), 0);
    }
  }
}

// NaN in a page of one sequence reaches that sequence only. (Pages are poisoned: position 4 is read though only the
// other page was written.)
TEST_F(ModelRunnerTest, NanKeysStayInTheirSequence) {
  auto runner = make();
  const Batch batch{.step = 1, .sequences = {sequence(0, {1, 2, 3}), sequence(1, {9}, 4), sequence(2, {7})}};
  const BatchResult result = run(*runner, batch);
  ASSERT_TRUE(result.status.ok());
  EXPECT_TRUE(result.tokens[0].status.ok());
  EXPECT_EQ(result.tokens[1].status.code(), StatusCode::kInternal);
  EXPECT_TRUE(result.tokens[2].status.ok());
}

TEST_F(ModelRunnerTest, ABadSamplingSpecFailsItsRowAlone) {
  auto runner = make();
  Batch batch{.step = 1, .sequences = {sequence(0, {1}), sequence(1, {2})}};
  batch.sequences[0].sampling.top_p = 0;
  const BatchResult result = run(*runner, batch);
  ASSERT_TRUE(result.status.ok());
  EXPECT_EQ(result.tokens[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(result.tokens[1].status.ok());
}

TEST_F(ModelRunnerTest, StagedWeightsServeFromTheBatchThatNamesThem) {
  auto runner = make();
  const auto next = load_model_dir(dir_, 8), other = load_model_dir(golden_model_dirs(MILLRACE_SOURCE_DIR).back(), 9);
  ASSERT_TRUE(next.ok() && other.ok());
  EXPECT_EQ(runner->stage(*other).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runner->stage(model_).code(), StatusCode::kInvalidArgument);  // it serves
  EXPECT_EQ(runner->serve_staged().code(), StatusCode::kConflict);
  ASSERT_TRUE(runner->stage(*next).ok());
  EXPECT_EQ(runner->staged_version(), 8u);
  EXPECT_EQ(run(*runner, {.step = 1, .sequences = {sequence(0, {1})}}).weight_version, 7u);
  EXPECT_EQ(run(*runner, {.step = 2, .weight_version = 7, .sequences = {sequence(0, {2}, 1)}}).weight_version, 7u);
  EXPECT_EQ(run(*runner, {.step = 3, .weight_version = 8, .sequences = {sequence(0, {3}, 2)}}).weight_version, 8u);
  EXPECT_EQ(runner->staged_version(), 0u);
  // Of a version that neither serves nor is staged nothing is computed.
  const BatchResult unknown = run(*runner, {.step = 4, .weight_version = 7, .sequences = {sequence(0, {4}, 3)}});
  EXPECT_EQ(unknown.status.code(), StatusCode::kInternal);
  EXPECT_TRUE(unknown.tokens.empty());
  EXPECT_EQ(run(*runner, {.step = 5, .weight_version = 8, .sequences = {sequence(0, {4}, 3)}}).weight_version, 8u);
}

TEST_F(ModelRunnerTest, ADroppedModelIsNotServed) {
  auto runner = make();
  ASSERT_TRUE(runner->stage(*load_model_dir(dir_, 8)).ok());
  runner->drop_staged();
  EXPECT_EQ(runner->staged_version(), 0u);
  EXPECT_EQ(runner->serve_staged().code(), StatusCode::kConflict);
  EXPECT_EQ(run(*runner, {.step = 1, .sequences = {sequence(0, {1})}}).weight_version, 7u);
}

// Here the release takes as long as the test likes: the next step must not wait for it.
TEST_F(ModelRunnerTest, OldWeightsAreFreedOnAnotherThread) {
  std::promise<void> freed_by_now;
  std::atomic<bool> waited_for{false};
  std::promise<std::thread::id> freeing, computing;
  std::shared_ptr<const Model> old(model_.get(), [&, keep = model_](const Model*) {
    freeing.set_value(std::this_thread::get_id());
    waited_for = freed_by_now.get_future().wait_for(std::chrono::minutes(2)) == std::future_status::timeout;
  });
  options_.logits_hook = [&](uint64_t step, std::span<const ReqId>, kernels::Rows) {
    if (step == 1) computing.set_value(std::this_thread::get_id());
  };
  auto runner = ModelRunner::make(std::move(old), options_).value();
  ASSERT_TRUE(runner->stage(*load_model_dir(dir_, 8)).ok());
  EXPECT_EQ(run(*runner, {.step = 1, .sequences = {sequence(0, {1})}}).weight_version, 7u);
  EXPECT_EQ(run(*runner, {.step = 2, .weight_version = 8, .sequences = {sequence(0, {2}, 1)}}).weight_version, 8u);
  EXPECT_FALSE(waited_for);
  EXPECT_NE(freeing.get_future().get(), computing.get_future().get());
  freed_by_now.set_value();
}

// Weights that are replaced faster than they are freed would fill the memory.
TEST_F(ModelRunnerTest, NoMoreThanSoManyOldModelsWaitToBeFreed) {
  std::promise<void> go_on;
  const std::shared_future<void> wait = go_on.get_future().share();
  const std::shared_ptr<const Model> next = load_model_dir(dir_, 8).value();
  const auto slow = [&] {
    return std::shared_ptr<const Model>(next.get(), [keep = next, wait](const Model*) { wait.wait(); });
  };
  auto runner = make();
  for (int i = 0; i <= kMaxRetiredModels; ++i) ASSERT_TRUE(runner->stage(slow()).ok()) << i;
  const Status refused = runner->stage(next);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("4 old models wait to be freed"), std::string::npos) << refused.message();
  EXPECT_TRUE(run(*runner, {.step = 1, .sequences = {sequence(0, {1})}}).status.ok());
  go_on.set_value();
  while (!runner->stage(next).ok()) std::this_thread::yield();
}

TEST_F(ModelRunnerTest, EndsWithBatchesStillInFlight) {
  auto runner = make();
  ASSERT_TRUE(runner->submit({.step = 1, .sequences = {sequence(0, {1, 2, 3})}}).ok());
  ASSERT_TRUE(runner->submit({.step = 2, .sequences = {sequence(1, {1, 2, 3})}}).ok());
  runner.reset();
}

TEST_F(ModelRunnerTest, OptionsOutOfRangeAreErrors) {
  const RunnerOptions good = options_;
  const auto code = [&](auto change) {
    options_ = good;
    change(options_);
    return ModelRunner::make(model_, options_).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.page_count = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.page_size = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.page_size = kMaxPageSize + 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.threads = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.max_rows = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.context_length = -1; }), StatusCode::kInvalidArgument);
}

TEST_F(ModelRunnerTest, PagesThatFitInABudget) {
  const ModelConfig& config = model_->config();
  const LayerRange all{0, config.layers};
  // Keys and values, f32, for every layer: 2 * 4 * layers * kv_heads * head_dim bytes a token.
  const int64_t page = int64_t{8} * config.layers * config.kv_heads * config.head_dim * 16;
  EXPECT_EQ(kv_page_bytes(config, all, 16), page);
  EXPECT_EQ(page_count_for(config, all, 16, static_cast<uint64_t>(page) * 10 + 1), 10);
  EXPECT_EQ(page_count_for(config, all, 16, static_cast<uint64_t>(page) - 1), 0);
  EXPECT_EQ(page_count_for(config, all, 16, std::numeric_limits<uint64_t>::max()), kMaxPageCount);
}

}  // namespace
}  // namespace millrace
