// Splits against the tables of the reference design, against all cuts there are, and against the files of models.
#include "models/split_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "models/testing/model_testing.h"

namespace millrace {
namespace {

using Kind = SplitRule::Kind;

ModelSizes sizes_of(std::vector<uint64_t> layers, ModelSizes::Part first) {
  ModelSizes sizes;
  sizes.first = first;
  for (const uint64_t bytes : layers) sizes.layers.push_back({bytes, bytes});
  return sizes;
}

std::vector<int> counts_of(const Result<SplitPlan>& plan) {
  std::vector<int> counts;
  if (!plan.ok()) ADD_FAILURE() << plan.status().to_string();
  if (!plan.ok()) return counts;
  for (const SplitPlan::Range& range : plan->ranges) counts.push_back(range.layers.count());
  return counts;
}

std::string error_of(const Result<SplitPlan>& plan) { return plan.ok() ? "" : plan.status().message(); }

// The reference design: 94 layers, 4 KV heads of 128 in bf16 give 2,048 bytes a token and layer, and 47.0 GiB at
// 262,144 tokens.
TEST(SplitPlan, EvenGivesTheTablesOfTheReferenceDesign) {
  constexpr uint64_t kLayerToken = 4 * 128 * 2 * 2;
  static_assert(kLayerToken == 2048);
  const ModelSizes sizes = sizes_of(std::vector<uint64_t>(94, 1000), {500, 300});
  const auto split = [&](int ranges) { return plan_split(sizes, {}, ranges, kLayerToken, 262144); };
  EXPECT_EQ(counts_of(split(1)), std::vector<int>{94});
  EXPECT_EQ(counts_of(split(2)), (std::vector<int>{47, 47}));
  EXPECT_EQ(counts_of(split(4)), (std::vector<int>{24, 24, 23, 23}));
  EXPECT_EQ(counts_of(split(8)), (std::vector<int>{12, 12, 12, 12, 12, 12, 11, 11}));
  const auto halves = split(2);
  uint64_t token = 0, all = 0;
  for (const SplitPlan::Range& range : halves->ranges) {
    token += range.kv_token_bytes;
    all += range.kv_bytes;
    EXPECT_EQ(range.kv_bytes, uint64_t{47} << 29);  // 23.5 GiB
  }
  EXPECT_EQ(token, 192512u);
  EXPECT_EQ(all, uint64_t{47} << 30);
  EXPECT_EQ(halves->ranges[0].layers, (LayerRange{0, 47}));
  EXPECT_EQ(halves->ranges[1].layers, (LayerRange{47, 94}));
  EXPECT_EQ(halves->ranges[0].weight_bytes, 47500u);
  EXPECT_EQ(halves->ranges[0].decode_bytes, 47300u);
  EXPECT_EQ(halves->ranges[1].weight_bytes, 47000u);
}

// The head is on the first range, which so gets fewer layers.
TEST(SplitPlan, BalancedLevelsWhatADecodeStepReads) {
  const ModelSizes sizes = sizes_of(std::vector<uint64_t>(28, 15'700'000), {155'600'000, 155'600'000});
  EXPECT_EQ(counts_of(plan_split(sizes, {Kind::kBalanced, {}}, 2, 2048, 1)), (std::vector<int>{9, 19}));
  // With a head of more than its share, the first range has nothing else.
  EXPECT_EQ(counts_of(plan_split(sizes, {Kind::kBalanced, {}}, 4, 2048, 1)), (std::vector<int>{0, 10, 9, 9}));
}

// Memory counts the whole embedding, and KV tokens, which make all layers alike.
TEST(SplitPlan, MemoryCountsTheEmbeddingAndTheKv) {
  const ModelSizes sizes = sizes_of({10, 10, 10, 10, 40, 40}, {100, 5});
  EXPECT_EQ(counts_of(plan_split(sizes, {Kind::kMemory, {}}, 2, 1, 1)), (std::vector<int>{1, 5}));    // 111 and 115
  EXPECT_EQ(counts_of(plan_split(sizes, {Kind::kBalanced, {}}, 2, 1, 1)), (std::vector<int>{4, 2}));  // 45 and 80
  EXPECT_EQ(counts_of(plan_split(sizes, {Kind::kMemory, {}}, 2, 1, 100'000)), (std::vector<int>{3, 3}));
}

// All ways to cut `layers` into `ranges`, of which the first alone may be empty.
void all_cuts(int layers, int ranges, std::vector<int>& counts, const std::function<void()>& visit) {
  if (ranges == 1) {
    counts.push_back(layers);
    visit();
    counts.pop_back();
    return;
  }
  for (int count = counts.empty() ? 0 : 1; count <= layers - (ranges - 1); ++count) {
    counts.push_back(count);
    all_cuts(layers - count, ranges - 1, counts, visit);
    counts.pop_back();
  }
}

TEST(SplitPlan, TheMaximumIsTheLeastOfAllCutsAndAmongThoseTheMostLevel) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto layers = 1 + static_cast<int>(random() % 9);
    const auto ranges = 1 + static_cast<int>(random() % static_cast<uint64_t>(std::min(layers, 5)));
    std::vector<uint64_t> costs;
    for (int i = 0; i < layers; ++i) costs.push_back(random() % 20);
    const ModelSizes sizes = sizes_of(costs, {1000, random() % 60});
    const auto cost_of = [&](const std::vector<int>& counts) {
      std::pair<uint64_t, uint64_t> cost;  // the maximum, the sum of squares
      std::size_t layer = 0;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        uint64_t sum = i == 0 ? sizes.first.read : 0;
        for (int k = 0; k < counts[i]; ++k) sum += costs[layer++];
        cost.first = std::max(cost.first, sum);
        cost.second += sum * sum;
      }
      return cost;
    };
    std::pair<uint64_t, uint64_t> best{UINT64_MAX, UINT64_MAX};
    std::vector<int> counts;
    all_cuts(layers, ranges, counts, [&] { best = std::min(best, cost_of(counts)); });
    ASSERT_EQ(cost_of(counts_of(plan_split(sizes, {Kind::kBalanced, {}}, ranges, 1, 1))), best);
  }
}

TEST(SplitPlan, RulesAreReadAndWrongOnesAreRefusedWithWhatWasSeen) {
  EXPECT_EQ(parse_split_rule("even")->kind, Kind::kEven);
  EXPECT_EQ(parse_split_rule("balanced")->kind, Kind::kBalanced);
  EXPECT_EQ(parse_split_rule("memory")->kind, Kind::kMemory);
  EXPECT_EQ(parse_split_rule("19,9")->counts, (std::vector<int>{19, 9}));
  EXPECT_EQ(parse_split_rule("0,28")->counts, (std::vector<int>{0, 28}));
  EXPECT_EQ(parse_split_rule("6")->counts, std::vector<int>{6});
  std::string too_many = "1";
  for (int i = 0; i < kMaxRanges; ++i) too_many += ",1";
  for (const std::string& text : {std::string("Even"), std::string(""), std::string(","), std::string("3,"),
                                  std::string(",3"), std::string("3,,3"), std::string("3;3"), std::string("-3,9"),
                                  std::string("3, 3"), std::string("99999999999"), std::string("1025"), too_many}) {
    const auto rule = parse_split_rule(text);
    ASSERT_FALSE(rule.ok()) << text;
    EXPECT_NE(rule.status().message().find("'" + text + "'"), std::string::npos) << rule.status().message();
  }
}

TEST(SplitPlan, WrongValuesAreRefusedWithWhatWasSeenAndWanted) {
  const ModelSizes sizes = sizes_of(std::vector<uint64_t>(6, 10), {5, 5});
  const auto with_counts = [&](std::vector<int> counts, int ranges) {
    return plan_split(sizes, {Kind::kCounts, std::move(counts)}, ranges, 1, 1);
  };
  EXPECT_EQ(counts_of(with_counts({0, 6}, 2)), (std::vector<int>{0, 6}));
  EXPECT_EQ(counts_of(with_counts({1, 2, 3}, 0)), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(error_of(with_counts({3, 4}, 2)), "the split has 7 layers in all; wanted 6, those of the model");
  EXPECT_EQ(error_of(with_counts({3, 0, 3}, 3)), "range 1 of the split has 0 layers; wanted 1 or more");
  EXPECT_EQ(error_of(with_counts({3, 3}, 3)), "the split has 2 counts of layers; wanted 3, one for each range");
  for (const Kind kind : {Kind::kEven, Kind::kBalanced, Kind::kMemory}) {
    for (const int ranges : {-1, 0, 7}) {
      EXPECT_EQ(error_of(plan_split(sizes, {kind, {}}, ranges, 1, 1)),
                fmt::format("the split has {} ranges; wanted 1 to 6 for a model of 6 layers", ranges));
    }
    EXPECT_EQ(counts_of(plan_split(sizes, {kind, {}}, 1, 1, 1)), std::vector<int>{6});
  }
  EXPECT_EQ(error_of(plan_split(sizes, {}, 2, 1, 0)),
            fmt::format("the split is for the KV of 0 tokens; wanted 1 to {}", kMaxSplitKvTokens));
}

// What the ranges hold is what is in the files, and what they read is no more.
TEST(SplitPlan, SizesComeFromTheFiles) {
  int tied = 0, untied = 0, experts = 0;
  for (const std::string& dir : golden_model_dirs(MILLRACE_SOURCE_DIR)) {
    SCOPED_TRACE(dir);
    const ModelConfig config = open_model_dir(dir)->config;
    const auto store = WeightStore::open(dir);
    ASSERT_TRUE(store.ok());
    const ModelSizes sizes = model_sizes(config, *store);
    uint64_t bytes = sizes.first.bytes, read = sizes.first.read;
    for (const ModelSizes::Part& layer : sizes.layers) {
      EXPECT_GT(layer.bytes, 0u);
      bytes += layer.bytes;
      read += layer.read;
    }
    EXPECT_EQ(bytes, store->total_bytes());
    const SafetensorsEntry* embedding = store->find(kEmbeddingName);
    const uint64_t row = (embedding->end - embedding->begin) / static_cast<uint64_t>(config.vocab_size);
    (config.tie_word_embeddings ? tied : untied) += 1;
    uint64_t unread = config.tie_word_embeddings ? 0 : embedding->end - embedding->begin - row;
    uint64_t of_experts = 0;
    for (const std::string& name : store->names()) {
      if (name.find(".mlp.experts.") == std::string::npos) continue;
      ++experts;
      of_experts += store->find(name)->end - store->find(name)->begin;
    }
    if (of_experts > 0) {
      unread += of_experts / static_cast<uint64_t>(config.num_experts) *
                static_cast<uint64_t>(config.num_experts - config.experts_per_token);
    }
    EXPECT_EQ(read, bytes - unread);
  }
  EXPECT_GT(tied, 0);
  EXPECT_GT(untied, 0);
  EXPECT_GT(experts, 0);
}

}  // namespace
}  // namespace millrace
