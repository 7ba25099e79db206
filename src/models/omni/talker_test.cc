// The talker's language model, which is one of a folder's two, and its projections against Hugging Face transformers
// (tests/golden/omni/talker, tests/oracles/omni_talker.py).
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "formats/mapped_file.h"
#include "formats/talker_config.h"
#include "models/omni/talker_projection.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

const std::string kTalker = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/talker";

TalkerConfig talker_config() {
  const auto text = read_small_file(kTalker + "/config.json", 1 << 20);
  CHECK(text.ok());
  const auto config = parse_talker_config(*text, "config.json");
  CHECK(config.ok());
  return *config;
}

std::shared_ptr<WeightStore> talker_store() {
  auto store = WeightStore::open(kTalker, MapMode::kMap, FolderPart::kTalker);
  CHECK(store.ok());
  return std::make_shared<WeightStore>(std::move(*store));
}

WeightStore talker_values() {
  auto golden = open_safetensors_file(kTalker + "/golden.safetensors");
  CHECK(golden.ok());
  return std::move(*golden);
}

void expect_near(const std::vector<float>& seen, const std::vector<float>& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  double worst = 0, greatest = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    worst = std::max(worst, std::abs(double{seen[i]} - wanted[i]));
    greatest = std::max(greatest, std::abs(double{wanted[i]}));
  }
  EXPECT_LE(worst / greatest, 1e-4);
}

// Rows [begin, end) of one sequence through the model: their logits.
std::vector<float> talker_logits(const Model& model, std::vector<float> hidden,
                                 const std::vector<std::array<float, 3>>& positions3, int64_t chunk,
                                 kernels::Ops& ops) {
  const ModelConfig& config = model.config();
  const auto rows = static_cast<int64_t>(positions3.size());
  const std::vector<int32_t> pages = {0};
  std::vector<Buffer> bytes;
  std::vector<kernels::KvLayer> kv;
  for (int i = 0; i < config.layers; ++i) {
    kernels::KvLayer layer{
        .page_count = 1, .page_size = rows, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
    layer.page_stride_bytes = layer.page_bytes();
    for (void** cache : {&layer.k, &layer.v}) {
      bytes.emplace_back(static_cast<std::size_t>(layer.page_bytes()));
      *cache = bytes.back().data();
    }
    kv.push_back(layer);
  }
  Workspace workspace(config, rows);
  std::vector<float> logits(static_cast<std::size_t>(rows * config.vocab_size));
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const kernels::AttentionSequence sequence{0, n, first, pages};
    std::vector<int32_t> positions(static_cast<std::size_t>(n));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    const kernels::Rows x(hidden.data() + first * config.hidden_size, n, config.hidden_size);
    model.forward(
        {.positions = positions,
         .sequences = {&sequence, 1},
         .kv = kv,
         .positions3 = std::span(positions3).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n))},
        x, workspace, ops);
    model.head(x, kernels::Rows(logits.data() + first * config.vocab_size, n, config.vocab_size), ops);
  }
  return logits;
}

class TalkerTest : public ::testing::TestWithParam<kernels::Isa> {};

TEST_P(TalkerTest, LogitsAreThoseOfTransformersStoredPackedAndInChunks) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  const TalkerConfig config = talker_config();
  auto stored = load_model(config.text, talker_store());
  ASSERT_TRUE(stored.ok()) << stored.status().to_string();
  auto packed = load_model(config.text, talker_store(), 1, {.pool = &pool, .isa = GetParam()});
  ASSERT_TRUE(packed.ok()) << packed.status().to_string();
  WeightStore golden = talker_values();
  const auto rows = golden_values<float>(golden, "rows_", 0);
  const auto axes = golden_values<int32_t>(golden, "positions_", 0);
  std::vector<std::array<float, 3>> positions(axes.size() / 3);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    positions[i % positions.size()][i / positions.size()] = static_cast<float>(axes[i]);
  }
  const std::vector<float> seen = talker_logits(**stored, rows, positions, 1 << 20, *ops);
  expect_near(seen, golden_values<float>(golden, "logits_", 0));
  EXPECT_EQ(talker_logits(**packed, rows, positions, 5, *ops), seen);
  // Its embedding is that of codes.
  const auto wanted = golden_values<float>(golden, "embedded_", 0);
  std::vector<int32_t> ids(static_cast<std::size_t>(config.text.vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> embedded(wanted.size());
  (*stored)->embed(ids, kernels::Rows(embedded.data(), config.text.vocab_size, config.text.hidden_size), *ops);
  EXPECT_EQ(embedded, wanted);
}

TEST_P(TalkerTest, ProjectionsAreThoseOfTransformers) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  const TalkerConfig config = talker_config();
  WeightStore golden = talker_values();
  const auto thinker = golden_values<float>(golden, "thinker_", 0);
  const int64_t count = static_cast<int64_t>(thinker.size()) / config.thinker_hidden_size;
  for (const auto kind : {TalkerProjection::Kind::kText, TalkerProjection::Kind::kMedia}) {
    const auto projection = TalkerProjection::load(kind, config, talker_store(), {});
    ASSERT_TRUE(projection.ok()) << projection.status().to_string();
    std::vector<float> seen(static_cast<std::size_t>(count * config.text.hidden_size));
    (*projection)
        ->project({thinker.data(), count, config.thinker_hidden_size}, *ops,
                  {seen.data(), count, config.text.hidden_size});
    const bool text = kind == TalkerProjection::Kind::kText;
    expect_near(seen, golden_values<float>(golden, text ? "text_" : "media_", 0));
  }
}

std::vector<kernels::Isa> talker_isas() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, TalkerTest, ::testing::ValuesIn(talker_isas()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

// No directory is a talker by itself.
TEST(TalkerLoad, ItsArchitectureIsNoModelsName) {
  const auto config = parse_model_config(R"({"architectures": ["Qwen3OmniMoeTalkerForConditionalGeneration"]})", "p");
  EXPECT_EQ(config.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(config.status().message().find("TalkerForConditionalGeneration, "), std::string::npos);
}

}  // namespace
}  // namespace millrace
