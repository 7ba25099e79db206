// Prompts with pictures of tests/golden/vision, for tests of runners. Included by *_test.cc only.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv/media_ids.h"
#include "models/vision/mrope.h"
#include "runner/testing/runner_testing.h"

namespace millrace {

inline constexpr int kVisionCases = 3;

inline std::string vision_golden(const std::string& name) {
  return std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/" + name;
}

struct VisionCase {
  TestRequest request;
  std::vector<int32_t> greedy;
  std::vector<float> last_logits;  // of the prompt
};

// The features and grids of the file as the input of its prompt.
inline VisionCase read_vision_case(WeightStore& golden, const VisionConfig& vision, int k) {
  VisionCase out;
  out.request.prompt = golden_values<int32_t>(golden, "prompt_", k);
  out.greedy = golden_values<int32_t>(golden, "greedy_", k);
  out.request.new_tokens = static_cast<int>(out.greedy.size());
  out.request.sampling.temperature = 0;
  const auto grids = golden_values<int32_t>(golden, "grids_", k);
  const auto features = golden_values<float>(golden, "features_", k);
  out.last_logits = golden_values<float>(golden, "logits_", k);

  auto input = std::make_shared<PromptInput>();
  std::vector<PictureRows> pictures;
  std::vector<int32_t>& prompt = out.request.prompt;
  const int64_t hidden = vision.out_hidden_size, sets = vision.feature_sets();
  const int64_t all_rows = static_cast<int64_t>(features.size()) / (hidden * sets);
  int64_t first_row = 0;
  for (std::size_t at = 0; at < prompt.size(); ++at) {
    if (prompt[at] != vision.image_token_id) continue;
    const int32_t height = grids[3 * pictures.size() + 1] / 2, width = grids[3 * pictures.size() + 2] / 2;
    const int32_t rows = height * width, begin = static_cast<int32_t>(at);
    auto values = std::make_shared<std::vector<float>>();
    for (int64_t set = 0; set < sets; ++set) {
      const auto from = features.begin() + (set * all_rows + first_row) * hidden;
      values->insert(values->end(), from, from + rows * hidden);
    }
    input->spans.push_back({begin, std::to_string(at), {rows, static_cast<int32_t>(sets), hidden, values}});
    std::fill_n(prompt.begin() + begin, rows, kFirstMediaId - static_cast<int32_t>(pictures.size()));
    pictures.push_back({begin, height, width});
    first_row += rows;
  }
  MropePositions positions = mrope_positions(static_cast<int32_t>(prompt.size()), pictures);
  input->positions = std::move(positions.rows);
  input->delta = positions.delta;
  out.request.input = std::move(input);
  return out;
}

// The golden cases of the model that is the test's parameter, "dense" or "moe".
class VisionCasesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto model = load_model_dir(vision_golden(GetParam()));
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    auto golden = open_safetensors_file(vision_golden(GetParam()) + "/golden.safetensors");
    ASSERT_TRUE(golden.ok());
    for (int k = 0; k < kVisionCases; ++k) cases_.push_back(read_vision_case(*golden, *model_->config().vision, k));
  }

  std::shared_ptr<const Model> model_;
  std::vector<VisionCase> cases_;
};

}  // namespace millrace
