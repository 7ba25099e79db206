// Two ways to make the KV of a range of layers agree, bit for bit: computed by the range, and read out of the pages of
// an engine that has more layers. So pages can be handed over by list, and the check needs no model of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runner/testing/chain_testing.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr int32_t kPageSize = 4;

class RangeKvTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    complete_ = load_model_dir(golden_model_dirs(MILLRACE_SOURCE_DIR).front()).value();
    const int layers = complete_->config().layers;
    ASSERT_GE(layers, 3);
    split_ = layers / 2;
    lower_ = range_of(complete_, {0, split_});
    upper_ = range_of(complete_, {split_, layers});
    options_.threads = 1;
    options_.page_size = kPageSize;
    options_.page_count = 8;
    options_.poison_pages = true;  // a row that reads what was not handed over is no number
    options_.kv_dtype = GetParam();
  }
  std::unique_ptr<LayerEngine> engine_of(const Model& model) { return LayerEngine::make(model, options_).value(); }

  // `count` rows at `position`, through the layers of the engine, over these pages.
  static std::vector<float> forward(LayerEngine& engine, const Model& model, const std::vector<float>& hidden,
                                    int32_t position, int64_t count, const std::vector<int32_t>& pages) {
    const kernels::Rows rows = engine.rows(count);
    std::copy(hidden.begin(), hidden.end(), rows.data);
    std::vector<int32_t> positions(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), position);
    const std::vector<kernels::AttentionSequence> sequences = {
        {.row_begin = 0, .row_count = count, .kv_length_before = position, .pages = pages}};
    engine.forward(model, {.positions = positions, .sequences = sequences});
    return {rows.data, rows.data + hidden.size()};
  }
  std::vector<float> embed(LayerEngine& engine, const std::vector<int32_t>& tokens) const {
    const kernels::Rows rows = engine.rows(static_cast<int64_t>(tokens.size()));
    complete_->embed(tokens, rows, engine.ops());
    return {rows.data, rows.data + rows.count * rows.width};
  }
  static std::string read(const LayerEngine& engine, const std::vector<PageId>& pages, LayerSpan layers,
                          int64_t bytes_of_page) {
    std::string bytes(pages.size() * static_cast<std::size_t>(bytes_of_page), '\0');
    EXPECT_TRUE(engine.read(pages, std::as_writable_bytes(std::span(bytes)), layers).ok());
    return bytes;
  }
  int64_t page_bytes(LayerRange layers) const {
    return kv_page_bytes(complete_->config(), layers, kPageSize, GetParam());
  }

  std::shared_ptr<const Model> complete_, lower_, upper_;
  int split_ = 0;
  RunnerOptions options_;
};

TEST_P(RangeKvTest, PagesOfARangeAreThoseOfAllLayersAndServeInstead) {
  const std::vector<int32_t> prompt = {5, 17, 3, 9, 12, 7, 1, 30, 22, 8, 4, 19};
  const int32_t length = static_cast<int32_t>(prompt.size());
  const int layers = complete_->config().layers;

  auto all = engine_of(*complete_);
  const std::vector<float> embedded = embed(*all, prompt);
  forward(*all, *complete_, embedded, 0, length, {0, 1, 2});

  // The chain, other pages in its second range, and the prompt in two chunks there.
  auto lower = engine_of(*lower_);
  auto upper = engine_of(*upper_);
  const std::vector<float> between = forward(*lower, *lower_, embedded, 0, length, {0, 1, 2});
  const auto cut = between.begin() + 5 * complete_->config().hidden_size;
  forward(*upper, *upper_, {between.begin(), cut}, 0, 5, {5, 3});
  forward(*upper, *upper_, {cut, between.end()}, 5, length - 5, {5, 3, 7});

  const std::vector pages = {PageId{0}, PageId{1}, PageId{2}};
  EXPECT_EQ(read(*all, pages, {0, split_}, page_bytes({0, split_})), read(*lower, pages, {}, page_bytes({0, split_})));
  const std::string handed = read(*all, pages, {split_, layers}, page_bytes({split_, layers}));
  EXPECT_EQ(handed, read(*upper, {PageId{5}, PageId{3}, PageId{7}}, {}, page_bytes({split_, layers})));

  // A range that never saw the prompt goes on with them.
  auto taken = engine_of(*upper_);
  ASSERT_TRUE(taken->write({{PageId{2}, PageId{6}, PageId{4}}, {SharedBytes::of(std::string(handed))}}).ok());
  const std::vector<float> next = forward(*lower, *lower_, embed(*lower, {14}), length, 1, {0, 1, 2, 3});
  const std::vector<float> wanted = forward(*upper, *upper_, next, length, 1, {5, 3, 7, 1});
  EXPECT_EQ(forward(*taken, *upper_, next, length, 1, {2, 6, 4, 0}), wanted);
  EXPECT_FALSE(taken->write({{PageId{2}}, {SharedBytes::of(std::string(handed))}}).ok());
}

INSTANTIATE_TEST_SUITE_P(Types, RangeKvTest, testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kI8),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace millrace
