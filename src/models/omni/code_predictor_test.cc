// The code predictor against Hugging Face transformers (tests/golden/omni/talker, tests/oracles/omni_talker.py).
#include "models/omni/code_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/mapped_file.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

const std::string kPredictor = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/talker";

TalkerConfig predictor_config() {
  const auto text = read_small_file(kPredictor + "/config.json", 1 << 20);
  CHECK(text.ok());
  const auto config = parse_talker_config(*text, "config.json");
  CHECK(config.ok());
  return *config;
}

std::shared_ptr<WeightStore> predictor_store() {
  auto store = WeightStore::open(kPredictor);
  CHECK(store.ok());
  return std::make_shared<WeightStore>(std::move(*store));
}

std::shared_ptr<const CodePredictor> open_predictor(const LoadOptions& options = {}) {
  auto predictor = CodePredictor::load(predictor_config(), predictor_store(), options);
  CHECK(predictor.ok());
  return *predictor;
}

struct Frames {
  std::vector<float> hidden, first, logits, sum;
  std::vector<int32_t> codes;
};

Frames golden_frames() {
  auto golden = open_safetensors_file(kPredictor + "/golden.safetensors");
  CHECK(golden.ok());
  return {golden_values<float>(*golden, "hidden_", 0), golden_values<float>(*golden, "first_", 0),
          golden_values<float>(*golden, "predicted_", 0), golden_values<float>(*golden, "sum_", 0),
          golden_values<int32_t>(*golden, "codes_", 0)};
}

// Frames [begin, begin + count), greedily. `logits` in the sequence of the groups.
Frames predict_greedily(const CodePredictor& predictor, const Frames& frames, int64_t begin, int64_t count,
                        CodePredictor::Scratch& scratch, kernels::Ops& ops) {
  const int64_t width = predictor.hidden_size(), columns = predictor.code_groups() - 1;
  Frames out;
  out.codes.resize(static_cast<std::size_t>(count * columns));
  out.sum.resize(static_cast<std::size_t>(count * width));
  int expected = 1;
  predictor.predict(
      kernels::ConstRows(frames.hidden.data(), begin + count, width).slice(begin, count),
      kernels::ConstRows(frames.first.data(), begin + count, width).slice(begin, count), scratch, ops,
      [&](int group, kernels::ConstRows logits, std::span<int32_t> codes) {
        EXPECT_EQ(group, expected++);
        for (int64_t r = 0; r < logits.count; ++r) {
          const float* row = logits.row(r);
          codes[static_cast<std::size_t>(r)] = static_cast<int32_t>(std::max_element(row, row + logits.width) - row);
        }
        out.logits.insert(out.logits.end(), logits.data, logits.data + logits.count * logits.width);
      },
      out.codes);
  EXPECT_EQ(expected, predictor.code_groups());
  const auto first = frames.first.begin() + begin * width;
  std::copy(first, first + count * width, out.sum.begin());
  predictor.add_embeddings(out.codes, scratch, ops, kernels::Rows(out.sum.data(), count, width));
  return out;
}

void expect_close(const std::vector<float>& seen, const std::vector<float>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  double worst = 0, greatest = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    worst = std::max(worst, std::abs(double{seen[i]} - wanted[i]));
    greatest = std::max(greatest, std::abs(double{wanted[i]}));
  }
  EXPECT_LE(worst / greatest, 1e-4);
}

class CodePredictorTest : public ::testing::TestWithParam<kernels::Isa> {};

TEST_P(CodePredictorTest, CodesAreThoseOfTransformers) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  const Frames golden = golden_frames();
  for (const bool packs : {false, true}) {
    const auto predictor = open_predictor(packs ? LoadOptions{.pool = &pool, .isa = GetParam()} : LoadOptions{});
    const auto frames = static_cast<int64_t>(golden.codes.size()) / (predictor->code_groups() - 1);
    ASSERT_GE(frames, 5);
    CodePredictor::Scratch scratch(*predictor, frames);
    const Frames seen = predict_greedily(*predictor, golden, 0, frames, scratch, *ops);
    EXPECT_EQ(seen.codes, golden.codes);
    expect_close(seen.logits, golden.logits);
    expect_close(seen.sum, golden.sum);
  }
}

// Alone, with a scratch that has served others, and any number of threads.
TEST_P(CodePredictorTest, CompanyAndThreadsChangeNoBit) {
  ThreadPool one(1), three(3);
  const auto alone = kernels::make_ops(GetParam(), one), together = kernels::make_ops(GetParam(), three);
  const Frames golden = golden_frames();
  const auto predictor = open_predictor();
  const auto columns = static_cast<std::size_t>(predictor->code_groups() - 1);
  const auto frames = static_cast<int64_t>(golden.codes.size() / columns);
  CodePredictor::Scratch scratch(*predictor, frames);
  const Frames all = predict_greedily(*predictor, golden, 0, frames, scratch, *together);
  for (int64_t frame = 0; frame < frames; ++frame) {
    const Frames single = predict_greedily(*predictor, golden, frame, 1, scratch, *alone);
    const int64_t width = predictor->hidden_size();
    EXPECT_TRUE(std::equal(single.sum.begin(), single.sum.end(), all.sum.begin() + frame * width)) << frame;
    for (std::size_t g = 0; g < columns; ++g) {
      const auto size = static_cast<std::size_t>(predictor->codebook_size());
      const auto from = (g * static_cast<std::size_t>(frames) + static_cast<std::size_t>(frame)) * size;
      EXPECT_TRUE(std::equal(single.logits.begin() + static_cast<std::ptrdiff_t>(g * size),
                             single.logits.begin() + static_cast<std::ptrdiff_t>((g + 1) * size),
                             all.logits.begin() + static_cast<std::ptrdiff_t>(from)))
          << frame << " group " << g + 1;
    }
  }
}

std::vector<kernels::Isa> predictor_isas() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, CodePredictorTest, ::testing::ValuesIn(predictor_isas()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

TEST(CodePredictorLoad, WrongTensorsAreRefused) {
  TalkerConfig fewer = predictor_config();
  fewer.code_groups -= 1;
  const auto unused = CodePredictor::load(fewer, predictor_store(), {});
  EXPECT_EQ(unused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unused.status().message().find("talker.code_predictor.lm_head.4.weight"), std::string::npos)
      << unused.status().to_string();
  TalkerConfig more = predictor_config();
  more.code_groups += 1;
  EXPECT_EQ(CodePredictor::load(more, predictor_store(), {}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
