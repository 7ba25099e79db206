// Every architecture against Hugging Face transformers (tests/golden/models): logits to 1e-4 of their range and 64
// greedy tokens, for every instruction set of this build.
#include <gtest/gtest.h>

#include <cmath>

#include "models/testing/model_testing.h"

namespace millrace {
namespace {

std::vector<kernels::Isa> available_isas() {
  std::vector<kernels::Isa> isas;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

int32_t argmax(const float* row, int vocab) { return static_cast<int32_t>(std::max_element(row, row + vocab) - row); }

// Returns the largest error of a logit, relative to their range.
double check_case(SequenceEngine& engine, WeightStore& golden, int k) {
  const auto prompt = golden_values<int32_t>(golden, "prompt_", k),
             greedy = golden_values<int32_t>(golden, "greedy_", k),
             positions = golden_values<int32_t>(golden, "positions_", k);
  const auto wanted = golden_values<float>(golden, "logits_", k), range = golden_values<float>(golden, "range_", k);
  const auto vocab = static_cast<std::size_t>(engine.config().vocab_size);
  EXPECT_EQ(wanted.size(), positions.size() * vocab);
  EXPECT_EQ(greedy.size(), 64u);

  std::vector<float> seen = engine.logits(prompt, 0);
  double worst = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const float* row = seen.data() + static_cast<std::size_t>(positions[i]) * vocab;
    for (std::size_t j = 0; j < vocab; ++j) {
      EXPECT_TRUE(std::isfinite(row[j]));
      worst = std::max(worst, std::abs(double{row[j]} - double{wanted[i * vocab + j]}));
    }
  }
  EXPECT_LE(worst, 1e-4 * range[0]) << "the largest error of a logit; the range is " << range[0];

  std::vector<int32_t> tokens;
  int32_t next = argmax(seen.data() + (prompt.size() - 1) * vocab, static_cast<int>(vocab));
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    tokens.push_back(next);
    if (i + 1 == greedy.size()) break;
    seen = engine.logits({next}, static_cast<int32_t>(prompt.size() + i));
    next = argmax(seen.data(), static_cast<int>(vocab));
  }
  EXPECT_EQ(tokens, greedy);
  return worst / range[0];
}

void check_model(const std::string& dir, const std::string& golden_file) {
  auto model = load_model_dir(dir);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  auto golden = open_safetensors_file(dir + "/" + golden_file);
  ASSERT_TRUE(golden.ok()) << golden.status().to_string();
  for (const kernels::Isa isa : available_isas()) {
    double worst = 0;
    int cases = 0;
    for (; golden->contains("prompt_" + std::to_string(cases)); ++cases) {
      SCOPED_TRACE(fmt::format("{} case {} isa {}", dir, cases, kernels::isa_name(isa)));
      const auto prompt = golden_values<int32_t>(*golden, "prompt_", cases);
      SequenceEngine engine(*model, isa, 1, 16, static_cast<int>(prompt.size()) + 64);
      worst = std::max(worst, check_case(engine, *golden, cases));
    }
    fmt::print("{} {}: {} cases, largest error {:.1e} of the range\n", dir.substr(dir.rfind('/') + 1),
               kernels::isa_name(isa), cases, worst);
    EXPECT_GE(cases, 1) << dir;
  }
}

TEST(GoldenModels, LogitsAndGreedyTokensEqualTransformers) {
  const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
  ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
  for (const std::string& dir : dirs) check_model(dir, "golden.safetensors");
}

// Their directories have the tensors of a vision tower, which the language model leaves alone.
TEST(GoldenModels, VisionLanguageModelsAnswerTextAsTransformersDoes) {
  for (const char* name : {"dense", "moe"}) {
    check_model(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/" + name, "text.safetensors");
  }
}

}  // namespace
}  // namespace millrace
