// Logprobs through the whole runner: of prompts and of generated tokens against transformers on the demo model
// (tests/golden/sampling/logprobs.json), the same bits however a prompt is cut into chunks, parts and batches, and rows
// that are broken.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runner/testing/logprobs_testing.h"
#include "runner/testing/runner_testing.h"
#include "wire/limits.h"

namespace millrace {
namespace {

using nlohmann::json;

// Logits span about 30; the engines differ in the order of f32 sums only.
constexpr double kTolerance = 2e-4;

struct Cut {
  int32_t chunk = 1 << 20;
  int32_t max_rows = kMaxRowsPerStep;
  int threads = 1;
};

RunnerOptions options_of(const Cut& cut, int32_t pages) {
  RunnerOptions options;
  options.threads = cut.threads;
  options.max_rows = cut.max_rows;
  options.page_count = pages;
  options.poison_pages = true;
  return options;
}

BatchResult run_batch(Runner& runner, Batch batch) {
  EXPECT_TRUE(runner.submit(std::move(batch)).ok());
  std::optional<BatchResult> result;
  while (!result) result = runner.poll(1000);
  EXPECT_TRUE(result->status.ok()) << result->status.to_string();
  return std::move(*result);
}

// A step of tokens [begin, end) of `all`, on pages of its own, scored against what follows in the first `prompt` tokens
// from token `from` on.
SequenceStep chunk_step(uint64_t id, const std::vector<int32_t>& all, std::size_t prompt, std::size_t begin,
                        std::size_t end, std::size_t from, const SamplingSpec& sampling) {
  SequenceStep step;
  step.request = ReqId{id};
  step.tokens.assign(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
  step.position = static_cast<int32_t>(begin);
  std::vector<int32_t> pages(32);
  std::iota(pages.begin(), pages.end(), static_cast<int32_t>(id) * 32);
  step.pages = std::move(pages);
  step.sample = end == all.size();
  step.sampling = sampling;
  for (std::size_t at = std::max(begin, from); at < std::min(end, prompt - 1); ++at) {
    if (step.score_targets.empty()) step.score_begin = static_cast<int32_t>(at - begin);
    step.score_targets.push_back(all[at + 1]);
  }
  return step;
}

std::vector<wire::TokenLogprobs> prompt_logprobs(const std::shared_ptr<const Model>& model, const Cut& cut,
                                                 const std::vector<int32_t>& prompt, const SamplingSpec& sampling,
                                                 std::size_t from = 0) {
  auto runner = ModelRunner::make(model, options_of(cut, 32)).value();
  std::vector<wire::TokenLogprobs> out;
  for (std::size_t begin = 0; begin < prompt.size(); begin += static_cast<std::size_t>(cut.chunk)) {
    const std::size_t end = std::min(prompt.size(), begin + static_cast<std::size_t>(cut.chunk));
    const SequenceStep step = chunk_step(0, prompt, prompt.size(), begin, end, from, sampling);
    const bool answers = step.answers();
    const BatchResult result = run_batch(*runner, {.step = begin, .sequences = {step}});
    EXPECT_EQ(result.tokens.size(), answers ? 1u : 0u);
    for (const SampledToken& token : result.tokens) {
      EXPECT_TRUE(token.status.ok()) << token.status.to_string();
      EXPECT_EQ(token.prompt_logprobs.size(), step.score_targets.size());
      out.insert(out.end(), token.prompt_logprobs.begin(), token.prompt_logprobs.end());
    }
  }
  return out;
}

std::shared_ptr<const Model> demo_model() { return load_model_dir(MILLRACE_SOURCE_DIR "/models/demo").value(); }

std::shared_ptr<const Model> tiny_model() {
  return load_model_dir(golden_model_dirs(MILLRACE_SOURCE_DIR).front()).value();
}

std::vector<int32_t> random_prompt(uint32_t seed, std::size_t length, int32_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
  return prompt;
}

void expect_golden(const wire::TokenLogprobs& found, const json& wanted) {
  EXPECT_EQ(found.token, wanted["token"]);
  EXPECT_NEAR(*found.logprob, wanted["logprob"].get<double>(), kTolerance);
  EXPECT_GE(found.rank, wanted["rank"][0].get<int32_t>());
  EXPECT_LE(found.rank, wanted["rank"][1].get<int32_t>());
  const auto top = wanted["top"].get<std::vector<double>>();  // one more than asked for
  ASSERT_EQ(found.top.size() + 1, top.size());
  for (std::size_t i = 0; i < found.top.size(); ++i) {
    EXPECT_NEAR(found.top[i], top[i], kTolerance);
    const bool clear = top[i] - top[i + 1] > 2 * kTolerance && (i == 0 || top[i - 1] - top[i] > 2 * kTolerance);
    EXPECT_TRUE(!clear || found.top_ids[i] == wanted["top_ids"][i].get<int32_t>()) << "place " << i;
  }
  ASSERT_EQ(found.of_ids.size(), wanted["of_ids"].size());
  for (std::size_t i = 0; i < found.of_ids.size(); ++i) {
    EXPECT_NEAR(found.of_ids[i], wanted["of_ids"][i].get<double>(), kTolerance);
  }
}

TEST(PromptLogprobs, EqualTransformersOnTheDemoModel) {
  const auto model = demo_model();
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/sampling/logprobs.json");
  const json cases = json::parse(file);
  ASSERT_EQ(cases.size(), 3u);
  for (const json& c : cases) {
    SamplingSpec sampling;
    sampling.temperature = 0;
    sampling.top_logprobs = 5;
    sampling.logprob_token_ids = c["chosen"].get<std::vector<int32_t>>();
    auto all = c["prompt"].get<std::vector<int32_t>>();
    const auto scored = prompt_logprobs(model, {.chunk = 7}, all, sampling);
    ASSERT_EQ(scored.size(), c["scored"].size());
    for (std::size_t i = 0; i < scored.size(); ++i) expect_golden(scored[i], c["scored"][i]);

    auto runner = ModelRunner::make(model, options_of({}, 32)).value();
    for (std::size_t begin = 0, made = 0; made < c["made"].size(); begin = all.size() - 1, ++made) {
      const SequenceStep step = chunk_step(0, all, 0 + 1, begin, all.size(), all.size(), sampling);
      const BatchResult result = run_batch(*runner, {.step = made, .sequences = {step}});
      ASSERT_TRUE(result.tokens[0].status.ok() && result.tokens[0].logprobs.has_value());
      expect_golden(*result.tokens[0].logprobs, c["made"][made]);
      EXPECT_TRUE(result.tokens[0].prompt_logprobs.empty());
      EXPECT_EQ(result.tokens[0].token, c["made"][made]["token"]);
      all.push_back(result.tokens[0].token);
    }
  }
}

TEST(PromptLogprobs, ChunksPartsAndThreadsChangeNoBit) {
  const auto model = tiny_model();
  const int32_t vocab = model->config().vocab_size;
  const auto length = static_cast<std::size_t>(std::min(100, model->config().max_position_embeddings - 1));
  ASSERT_GT(length, static_cast<std::size_t>(kMaxLogitRows)) << "the test wants several groups of rows";
  const auto prompt = random_prompt(4, length, vocab);
  SamplingSpec sampling;
  sampling.top_logprobs = 7;
  sampling.logprob_token_ids = {0, vocab - 1};
  const auto whole = prompt_logprobs(model, {}, prompt, sampling);
  ASSERT_EQ(whole.size(), prompt.size() - 1);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i].token, prompt[i + 1]);
  const Cut cuts[] = {{1, 512, 1},      {7, 512, 2},     {16, 5, 1}, {33, 512, 2},
                      {1 << 20, 13, 2}, {1 << 20, 1, 1}, {64, 32, 1}};
  for (const Cut& cut : cuts) {
    EXPECT_TRUE(same(prompt_logprobs(model, cut, prompt, sampling), whole))
        << "chunk " << cut.chunk << " rows " << cut.max_rows;
  }
  // From a later token on: the same, without the first.
  for (const std::size_t from : {1u, 6u, 31u, 32u, 98u}) {
    const std::vector<wire::TokenLogprobs> tail(whole.begin() + static_cast<std::ptrdiff_t>(from), whole.end());
    EXPECT_TRUE(same(prompt_logprobs(model, {16, 512, 1}, prompt, sampling, from), tail)) << "from " << from;
  }
}

// Beside sequences that sample, score, do both and do neither, in one batch; the scored rows change no token.
TEST(PromptLogprobs, MixWithEverythingInOneBatch) {
  const auto model = tiny_model();
  const int32_t vocab = model->config().vocab_size;
  SamplingSpec sampling;
  sampling.temperature = 0.8;
  sampling.top_logprobs = 2;
  auto runner = ModelRunner::make(model, options_of({.max_rows = 11, .threads = 2}, 4 * 32)).value();
  Batch batch{.step = 1};
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t id = 0; id < 4; ++id) {
    prompts.push_back(random_prompt(static_cast<uint32_t>(50 + id), 20, vocab));
    batch.sequences.push_back(chunk_step(id, prompts[id], 20, 0, 20, 0, sampling));
  }
  batch.sequences[1].sample = false;
  batch.sequences[2].score_targets.clear();
  batch.sequences[3].sample = false;
  batch.sequences[3].score_targets.clear();
  // The last row of the first: scored and sampled.
  batch.sequences[0].score_targets.push_back(vocab - 1);
  const BatchResult result = run_batch(*runner, batch);
  ASSERT_EQ(result.tokens.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.tokens[i].request.value, i);
    EXPECT_TRUE(result.tokens[i].status.ok());
    EXPECT_EQ(result.tokens[i].logprobs.has_value(), i != 1);
  }
  EXPECT_EQ(result.tokens[0].prompt_logprobs.size(), 20u);
  EXPECT_EQ(result.tokens[0].prompt_logprobs.back().top, result.tokens[0].logprobs->top);
  EXPECT_TRUE(result.tokens[2].prompt_logprobs.empty());
  auto wanted = prompt_logprobs(model, {}, prompts[1], sampling);
  EXPECT_TRUE(same(result.tokens[1].prompt_logprobs, wanted));
  // The draw of the first is that of a step that scores nothing.
  SequenceStep plain = chunk_step(0, prompts[0], 20, 0, 20, 0, sampling);
  plain.score_targets.clear();
  const BatchResult again = run_batch(*runner, {.step = 2, .sequences = {plain}});
  EXPECT_EQ(again.tokens[0].token, result.tokens[0].token);
  EXPECT_TRUE(same(again.tokens[0].logprobs.value(), result.tokens[0].logprobs.value()));
}

TEST(PromptLogprobs, ABrokenRowFailsItsSequenceAlone) {
  const auto model = tiny_model();
  const auto prompt = random_prompt(9, 20, model->config().vocab_size);
  SamplingSpec sampling;
  RunnerOptions options = options_of({.max_rows = 7, .threads = 2}, 3 * 32);
  int rows = 0;
  options.logits_hook = [&](uint64_t, std::span<const ReqId> ids, kernels::Rows logits) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i].value == 1 && rows++ == 3) {
        logits.row(static_cast<int64_t>(i))[2] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  };
  auto runner = ModelRunner::make(model, options).value();
  Batch batch{.step = 1};
  for (uint64_t id = 0; id < 3; ++id) batch.sequences.push_back(chunk_step(id, prompt, 20, 0, 20, 0, sampling));
  batch.sequences[2].sampling.top_logprobs = static_cast<int32_t>(wire::kMaxTopLogprobs) + 1;
  const BatchResult result = run_batch(*runner, batch);
  ASSERT_EQ(result.tokens.size(), 3u);
  EXPECT_TRUE(result.tokens[0].status.ok());
  EXPECT_TRUE(same(result.tokens[0].prompt_logprobs, prompt_logprobs(model, {}, prompt, sampling)));
  EXPECT_EQ(result.tokens[1].status.code(), StatusCode::kInternal);
  EXPECT_NE(result.tokens[1].status.message().find("token 2 is nan"), std::string::npos)
      << result.tokens[1].status.message();
  EXPECT_EQ(result.tokens[2].status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
