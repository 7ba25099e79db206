// Prompts with pictures through the runner: Hugging Face's logits and greedy ids (tests/golden/vision), and the same
// bits whatever the chunks and the company.
#include <gtest/gtest.h>

#include <cmath>

#include "runner/testing/vision_testing.h"

namespace millrace {
namespace {

class VisionPromptsTest : public VisionCasesTest {
 protected:
  std::vector<TestRequest> requests() const {
    std::vector<TestRequest> out;
    for (const VisionCase& one : cases_) out.push_back(one.request);
    return out;
  }
  std::vector<TestRequest> run(TestPlan plan, std::vector<TestRequest> requests) const {
    TestScheduler scheduler(model_, plan, std::move(requests));
    const Status status = scheduler.run();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return scheduler.requests();
  }
};

TEST_P(VisionPromptsTest, AnswersAreThoseOfTransformers) {
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (!kernels::isa_available(isa)) continue;
    const auto answers = run({.isa = isa}, requests());
    for (std::size_t k = 0; k < cases_.size(); ++k) {
      EXPECT_EQ(answers[k].tokens, cases_[k].greedy) << kernels::isa_name(isa) << " case " << k;
      const std::vector<float>&seen = answers[k].logits.front(), &wanted = cases_[k].last_logits;
      const auto [least, greatest] = std::minmax_element(wanted.begin(), wanted.end());
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_LE(std::abs(seen[i] - wanted[i]), 1e-4 * (*greatest - *least)) << kernels::isa_name(isa) << " " << i;
      }
    }
  }
}

// Text beside pictures too: its rows have three equal positions then, and one when it is alone.
TEST_P(VisionPromptsTest, ChunksAndCompanyChangeNoBit) {
  std::vector<TestRequest> all = requests();
  TestRequest text{.prompt = {7, 9, 11, 13, 15, 17, 19, 21, 23}, .new_tokens = 12};
  text.sampling.temperature = 0;
  all.push_back(text);
  const auto isa = kernels::resolve_isa();
  ASSERT_TRUE(isa.ok());
  const auto alone = run({.isa = *isa}, all);
  for (const int chunk : {1, 7, 512}) {
    for (const uint32_t seed : {0u, 5u}) {
      const TestPlan plan{2, 4, 9, 4, chunk, seed, *isa};  // rows of at most 9, in batches of 4, pages of 4
      const auto together = run(plan, all);
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(together[i].tokens, alone[i].tokens) << "chunk " << chunk << " seed " << seed << " request " << i;
        EXPECT_EQ(together[i].logits, alone[i].logits) << "chunk " << chunk << " seed " << seed << " request " << i;
      }
    }
  }
}

TEST_P(VisionPromptsTest, RefusesRowsThatAreNotThoseOfTheInput) {
  std::vector<TestRequest> wrong = {cases_[0].request};
  wrong[0].prompt[0] = kFirstMediaId;  // a picture's number where there is none
  TestScheduler scheduler(model_, {}, wrong);
  EXPECT_EQ(scheduler.run().code(), StatusCode::kInvalidArgument);
  wrong = {cases_[0].request};
  wrong[0].input = nullptr;
  TestScheduler without(model_, {}, wrong);
  EXPECT_EQ(without.run().code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Models, VisionPromptsTest, ::testing::Values("dense", "moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace millrace
