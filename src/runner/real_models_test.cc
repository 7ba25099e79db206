// The trained story models of tests/data/README.md, through the runner: greedy continuations of twenty prompts equal
// those of transformers (tests/golden/models/real_*.safetensors), one by one and as one batch.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/test_data.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

void check_model(const std::string& name) {
  const std::string dir = test_data("models/" + name);
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << no_test_data("models/" + name);
  auto model = load_model_dir(dir);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  auto golden = open_safetensors_file(MILLRACE_SOURCE_DIR "/tests/golden/models/real_" + name + ".safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status().to_string();

  std::vector<TestRequest> requests(20);
  for (int k = 0; k < 20; ++k) {
    TestRequest& request = requests[static_cast<std::size_t>(k)];
    request.prompt = golden_values<int32_t>(*golden, "prompt_", k);
    request.new_tokens = 64;
    request.sampling.temperature = 0;
  }
  TestPlan plan;
  plan.isa = kernels::resolve_isa().value();
  plan.threads = 2;
  plan.batch_limit = 20;
  plan.order_seed = 5;
  TestScheduler scheduler(*model, plan, requests);
  const Status status = scheduler.run();
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (int k = 0; k < 20; ++k) {
    EXPECT_EQ(scheduler.requests()[static_cast<std::size_t>(k)].tokens, golden_values<int32_t>(*golden, "greedy_", k))
        << name << " prompt " << k;
  }
}

TEST(RealModels, Stories260K) { check_model("stories260K"); }
TEST(RealModels, TinyStories656K) { check_model("tinystories-656k"); }
TEST(RealModels, Stories15M) { check_model("stories15M"); }

}  // namespace
}  // namespace millrace
