// Prompts with pictures through a chain of layer ranges: Hugging Face's greedy ids (tests/golden/vision), and the same
// bits as one range, wherever the layers are that add features.
#include <gtest/gtest.h>

#include "runner/model_runner.h"
#include "runner/testing/chain_testing.h"
#include "runner/testing/runner_testing.h"
#include "runner/testing/vision_testing.h"

namespace millrace {
namespace {

constexpr int32_t kPageSize = 4;

class VisionChainTest : public VisionCasesTest {
 protected:
  void SetUp() override {
    VisionCasesTest::SetUp();
    options_.threads = 1;
    options_.page_size = kPageSize;
    options_.page_count = 64;
    options_.poison_pages = true;
  }

  // Prompt in chunks of `chunk` rows, then one token a batch.
  std::vector<int32_t> greedy(Runner& runner, const VisionCase& one, int32_t chunk) {
    std::vector<int32_t> pages(32), all = one.request.prompt, out;
    for (int32_t i = 0; i < 32; ++i) pages[static_cast<std::size_t>(i)] = 31 - i;
    for (int32_t done = 0; out.size() < one.greedy.size();) {
      const int32_t count = std::min(chunk, static_cast<int32_t>(all.size()) - done);
      SequenceStep step{.request = ReqId{1}, .position = done};
      step.tokens.assign(all.begin() + done, all.begin() + done + count);
      step.pages = pages;
      step.input = one.request.input;
      done += count;
      step.sample = done == static_cast<int32_t>(all.size());
      step.sampling = one.request.sampling;
      EXPECT_TRUE(runner.submit({.step = step_++, .sequences = {step}}).ok());
      std::optional<BatchResult> result;
      while (!result) result = runner.poll(1000);
      EXPECT_TRUE(result->status.ok()) << result->status.to_string();
      if (!result->status.ok()) break;
      for (const SampledToken& token : result->tokens) out.push_back(token.token), all.push_back(token.token);
    }
    return out;
  }

  RunnerOptions options_;
  uint64_t step_ = 0;
};

// The models have 4 layers, of which 3 add features: with 4 ranges each of the first three adds some.
TEST_P(VisionChainTest, AnswersAreThoseOfTransformers) {
  const int layers = model_->config().layers;
  ASSERT_EQ(layers, 4);
  std::vector<std::vector<LayerRange>> splits = {even_ranges(layers, 2), even_ranges(layers, 3),
                                                 even_ranges(layers, 4)};
  splits.push_back({{0, 0}, {0, 1}, {1, 4}});  // the first range embeds alone
  for (const std::vector<LayerRange>& split : splits) {
    TestChain chain(model_, options_, split);
    ASSERT_TRUE(chain.runner->wait_complete([] { return true; }).ok());
    for (std::size_t k = 0; k < cases_.size(); ++k) {
      for (const int32_t chunk : {1000, 7, 1}) {
        EXPECT_EQ(greedy(chain, cases_[k], chunk), cases_[k].greedy)
            << split.size() << " ranges, case " << k << ", chunks of " << chunk;
      }
    }
  }
}

TEST_P(VisionChainTest, LogitsAreTheSameBits) {
  const auto logits_of = [&](auto&& make, const VisionCase& one) {
    std::vector<float> out;  // of all steps
    RunnerOptions options = options_;
    options.logits_hook = [&](uint64_t, std::span<const ReqId>, kernels::Rows logits) {
      out.insert(out.end(), logits.data, logits.data + logits.count * logits.width);
    };
    const auto runner = make(options);
    (void)greedy(*runner, one, 5);
    return out;
  };
  const auto complete = [&](const RunnerOptions& options) { return ModelRunner::make(model_, options).value(); };
  const auto split = [&](const RunnerOptions& options) { return make_test_chain(model_, options, 4); };
  for (const VisionCase& one : cases_) EXPECT_EQ(logits_of(split, one), logits_of(complete, one));
}

INSTANTIATE_TEST_SUITE_P(Models, VisionChainTest, ::testing::Values("dense", "moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace millrace
