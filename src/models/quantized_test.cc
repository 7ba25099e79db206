// Models whose weights are quantized while they are loaded: every implementation against the oracle `ref` over the same
// blocks, and the blocks against the weights that they were made from.
//
// An implementation quantizes activations to 8 bits per 32 elements, `ref` does not; Q8_0 does the same to weights. The
// golden models are random, narrow and not forgiving: some 30 products of 32 to 64 terms one after the other, so that
// either error moves the worst logit by one to six percent of the range (the products themselves are held to their
// proven bound in kernels.panels). Mixed-up rows, halves or scales move it by about the range. Q4_0's error is sixteen
// times that of Q8_0, which leaves its weights only a weak bound against the floats, but the same bound against `ref`.
#include <gtest/gtest.h>

#include <cmath>

#include "models/testing/model_testing.h"

namespace millrace {
namespace {

constexpr double kActivations = 0.06;
constexpr double kWeightsQ8 = 0.12;
constexpr double kWeightsQ4 = 0.7;

Result<std::shared_ptr<const Model>> load(const std::string& name, const LoadOptions& options) {
  const std::string directory = MILLRACE_SOURCE_DIR "/tests/golden/models/" + name;
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(directory));
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(directory));
  ModelConfig config = dir.config;
  // Every expert is asked: where a router chooses a few, a small error may choose another one, which no bound on the
  // error covers (tiny_qwen3_moe with its own 3 of 8: 0.069 of the range in Q8_0, with all 8: 0.016).
  config.experts_per_token = config.num_experts;
  return load_model(config, std::make_shared<WeightStore>(std::move(store)), 1, options);
}

std::vector<float> logits(const std::string& name, kernels::Isa isa, std::optional<DType> quantize) {
  ThreadPool pool(2);
  const LoadOptions options{.pool = &pool, .isa = isa, .quantize = quantize};
  auto model = load(name, options);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return {};
  std::vector<int32_t> prompt;
  for (int i = 0; i < 21; ++i) prompt.push_back(i * 37 % (*model)->config().vocab_size);
  SequenceEngine engine(*model, isa, 2, 16, 32);
  return engine.logits(prompt, 0);
}

// The largest difference as a part of the range of `wanted`.
double distance(const std::vector<float>& got, const std::vector<float>& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  if (got.size() != wanted.size() || got.empty()) return 1e9;
  const auto [least, most] = std::minmax_element(wanted.begin(), wanted.end());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return 1e9;
    worst = std::max(worst, std::abs(double{got[i]} - double{wanted[i]}));
  }
  return worst / double{*most - *least};
}

class QuantizedModel : public testing::TestWithParam<std::string> {};

TEST_P(QuantizedModel, LogitsStayNearTheOracleAndTheFloats) {
  const std::vector<float> floats = logits(GetParam(), kernels::Isa::kRef, std::nullopt);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const std::vector<float> oracle = logits(GetParam(), kernels::Isa::kRef, type);
    const double from_floats = distance(oracle, floats);
    EXPECT_LE(from_floats, type == DType::kQ8_0 ? kWeightsQ8 : kWeightsQ4) << dtype_name(type);
    EXPECT_GT(from_floats, 0) << "nothing was quantized";
    for (const kernels::Isa isa : kernels::kAllIsas) {
      if (isa == kernels::Isa::kRef || !kernels::isa_available(isa)) continue;
      const double from_oracle = distance(logits(GetParam(), isa, type), oracle);
      EXPECT_LE(from_oracle, kActivations) << dtype_name(type) << " " << kernels::isa_name(isa);
      fmt::print("{} {} {}: {:.4f} of the range from ref; the blocks {:.4f} from the floats\n", GetParam(),
                 dtype_name(type), kernels::isa_name(isa), from_oracle, from_floats);
    }
  }
}

// Widths that are multiples of 32 in all or some matrices.
INSTANTIATE_TEST_SUITE_P(Golden, QuantizedModel,
                         testing::Values("tiny_llama3_scaled", "tiny_llama_linear", "tiny_qwen3", "tiny_mistral_full",
                                         "tiny_qwen3_moe"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace millrace
