// KV dtypes on the demo model (models/demo, prompts of tests/golden/demo/greedy.json): the same tokens for any chunk
// and page size in each dtype, and how far each is from f32. f32 itself is compared with transformers. Prints the table
// of docs/performance.md.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"
#include "runner/kv_pages.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr int kNewTokens = 64;

struct Golden {
  std::vector<int32_t> prompt, greedy;
};

class KvDTypeTest : public testing::Test {
 protected:
  void SetUp() override {
    auto model = load_model_dir(MILLRACE_SOURCE_DIR "/models/demo");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/demo/greedy.json");
    std::stringstream text;
    text << file.rdbuf();
    const Result<Json> json = parse_json(text.str());
    ASSERT_TRUE(json.ok()) << json.status().to_string();
    for (const Json& entry : *json) {
      golden_.push_back(
          {entry["prompt_ids"].get<std::vector<int32_t>>(), entry["greedy_ids"].get<std::vector<int32_t>>()});
    }
    ASSERT_EQ(golden_.size(), 20u);
  }

  std::vector<TestRequest> run(std::vector<TestRequest> requests, DType dtype, int32_t page_size, int chunk) {
    TestPlan plan;
    plan.isa = isa_;
    plan.batch_limit = static_cast<int>(requests.size());
    plan.page_size = page_size;
    plan.chunk_limit = chunk;
    plan.kv_dtype = dtype;
    TestScheduler scheduler(model_, plan, std::move(requests));
    const Status status = scheduler.run();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return scheduler.requests();
  }

  static TestRequest greedy(std::vector<int32_t> prompt, int new_tokens) {
    TestRequest request;
    request.prompt = std::move(prompt);
    request.new_tokens = new_tokens;
    request.sampling.temperature = 0;
    return request;
  }

  const kernels::Isa isa_ = kernels::resolve_isa().value();
  std::shared_ptr<const Model> model_;
  std::vector<Golden> golden_;
};

// Three prompts of their own, and one of all prompts together, which 512 tokens do not hold.
TEST_F(KvDTypeTest, SameBitsForAnyChunkAndPage) {
  std::vector<TestRequest> requests;
  std::vector<int32_t> all;
  for (const Golden& golden : golden_) all.insert(all.end(), golden.prompt.begin(), golden.prompt.end());
  ASSERT_GT(all.size(), 512u);
  all.resize(520);
  requests.push_back(greedy(all, 8));
  for (const std::size_t i : {0u, 12u, 18u}) requests.push_back(greedy(golden_[i].prompt, 8));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    const std::vector<TestRequest> wanted = run(requests, dtype, 16, 1 << 20);
    for (const auto& [chunk, page_size] : {std::pair<int, int32_t>{16, 1}, {64, 64}, {512, 16}}) {
      SCOPED_TRACE(fmt::format("{} chunk {} page {}", dtype_name(dtype), chunk, page_size));
      const std::vector<TestRequest> seen = run(requests, dtype, page_size, chunk);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].tokens, wanted[i].tokens);
        EXPECT_TRUE(seen[i].logits == wanted[i].logits) << "request " << i;
      }
    }
  }
}

struct Distance {
  double error = 0;    // sum of (logit - f32's)^2
  double power = 0;    // sum of (f32's logit - mean of its row)^2
  double largest = 0;  // |logit - f32's|
  int same_best = 0;   // rows whose best token is f32's
  int rows = 0;
  double relative() const { return std::sqrt(error / power); }

  void add_row(const float* seen, const float* wanted, int32_t vocab) {
    double mean = 0;
    for (int32_t i = 0; i < vocab; ++i) mean += wanted[i] / static_cast<double>(vocab);
    for (int32_t i = 0; i < vocab; ++i) {
      const double difference = double{seen[i]} - wanted[i];
      error += difference * difference;
      power += (wanted[i] - mean) * (wanted[i] - mean);
      largest = std::max(largest, std::fabs(difference));
    }
    same_best += std::max_element(seen, seen + vocab) - seen == std::max_element(wanted, wanted + vocab) - wanted;
    ++rows;
  }
};

struct Bound {
  DType dtype;
  double relative;
  int equal;
};
// Measured with avx2: 1.9e-4, 1.6e-3 and 4.4e-3; and 20, 20 and 18 equal continuations.
constexpr Bound kBounds[] = {
    {DType::kF32, 0, 20}, {DType::kF16, 6e-4, 18}, {DType::kBF16, 5e-3, 16}, {DType::kI8, 1.4e-2, 14}};

// The logits of every row that leads to one of the 64 tokens of f32's continuation, and the greedy continuations.
TEST_F(KvDTypeTest, DistanceFromF32) {
  const int32_t vocab = model_->config().vocab_size;
  std::vector<TestRequest> requests;
  Distance distances[std::size(kBounds)];
  for (const Golden& golden : golden_) {
    requests.push_back(greedy(golden.prompt, kNewTokens));
    std::vector<int32_t> tokens = golden.prompt;
    tokens.insert(tokens.end(), golden.greedy.begin(), golden.greedy.end() - 1);
    const auto count = static_cast<int>(tokens.size());
    std::vector<float> wanted;
    for (std::size_t n = 0; n < std::size(kBounds); ++n) {
      const auto seen = SequenceEngine(model_, isa_, 1, 16, count, kBounds[n].dtype).logits(tokens, 0);
      if (n == 0) wanted = seen;
      for (int64_t r = static_cast<int64_t>(golden.prompt.size()) - 1; r < count; ++r) {
        distances[n].add_row(seen.data() + r * vocab, wanted.data() + r * vocab, vocab);
      }
    }
  }
  std::printf("%-6s %12s %12s %12s %12s %10s\n", "dtype", "bytes/token", "logits rms", "largest", "same best", "equal");
  for (std::size_t n = 0; n < std::size(kBounds); ++n) {
    const auto& [dtype, relative, least_equal] = kBounds[n];
    int equal = 0;
    const std::vector<TestRequest> done = run(requests, dtype, 16, 1 << 20);
    for (std::size_t i = 0; i < done.size(); ++i) equal += done[i].tokens == golden_[i].greedy;
    const auto bytes = static_cast<long>(kv_page_bytes(model_->config(), model_->layers(), 1, dtype));
    std::printf("%-6s %12ld %12.2e %12.2e %6d/%d %7d/20\n", std::string(dtype_name(dtype)).c_str(), bytes,
                distances[n].relative(), distances[n].largest, distances[n].same_best, distances[n].rows, equal);
    EXPECT_LE(distances[n].relative(), relative);
    EXPECT_GE(equal, least_equal);
    EXPECT_EQ(distances[n].relative() > 0, dtype != DType::kF32) << "no rounding: is the dtype used?";
  }
}

}  // namespace
}  // namespace millrace
