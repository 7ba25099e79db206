#include "api/packed_weights.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

// One bucket of vectors of f32 with these extents, named by them.
WeightPlan plan_of(const std::vector<int64_t>& extents) {
  WeightPlan plan;
  plan.buckets.emplace_back();
  for (const int64_t extent : extents) {
    plan.buckets.back().push_back({.name = std::to_string(extent), .dtype = DType::kF32, .shape = {extent}});
  }
  return plan;
}

std::vector<std::vector<std::string>> packed_names(int64_t buffer_bytes, const std::vector<int64_t>& extents) {
  WeightPlan plan = plan_of(extents);
  EXPECT_TRUE(pack({.packed = true, .buffer_bytes = buffer_bytes}, plan).ok());
  EXPECT_TRUE(plan.flattened);
  std::vector<std::vector<std::string>> names;
  for (const auto& bucket : plan.buckets) {
    names.emplace_back();
    for (const TensorSpec& tensor : bucket) names.back().push_back(tensor.name);
  }
  return names;
}

using Names = std::vector<std::vector<std::string>>;

TEST(PackedWeights, ABufferIsCompleteOnceItIsLargerThanTheSize) {
  EXPECT_EQ(packed_names(16, {2, 2, 1, 3, 1}),
            (Names{{"2", "2", "1"}, {"3", "1"}}));  // 16 bytes are not larger than 16
  EXPECT_EQ(packed_names(15, {2, 2, 1, 3, 1}), (Names{{"2", "2"}, {"1", "3"}, {"1"}}));
  EXPECT_EQ(packed_names(1, {1, 9, 2}), (Names{{"1"}, {"9"}, {"2"}}));
  EXPECT_EQ(packed_names(kPackedBufferBytes, {1, 9, 2}), (Names{{"1", "9", "2"}}));
  EXPECT_EQ(packed_names(3, {0, 1, 0}), (Names{{"0", "1"}, {"0"}}));
}

TEST(PackedWeights, WhatIsNotPackedIsLeft) {
  WeightPlan plan = plan_of({1, 2});
  ASSERT_TRUE(pack({}, plan).ok());
  EXPECT_TRUE(!plan.flattened && plan.buckets.size() == 1);
}

TEST(PackedWeights, TooManyBuffersAreRefused) {
  WeightPlan plan = plan_of(std::vector<int64_t>(kMaxWeightBuckets + 1, 1));
  const Status status = pack({.packed = true, .buffer_bytes = 1}, plan);
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_EQ(status.message(), "packed_buffer_size_bytes is 1, which makes 4097 buffers; wanted at most 4096");
}

TEST(PackedWeights, AnUpdateCountsBeforeItsGroup) {
  PackingOfGroup groups;
  groups.set("a", *read_packing(Json{{"packed", true}, {"packed_buffer_size_bytes", 7}}, {}));
  EXPECT_TRUE(groups.of("a").packed && groups.of("a").buffer_bytes == 7);
  EXPECT_TRUE(!groups.of("b").packed && groups.of("b").buffer_bytes == kPackedBufferBytes);
  const auto update = read_packing(Json{{"packed", false}}, groups.of("a"));
  EXPECT_TRUE(update.ok() && !update->packed && update->buffer_bytes == 7);
  for (const Json& bad : {Json{{"packed", "yes"}}, Json{{"packed_buffer_size_bytes", 0}},
                          Json{{"packed_buffer_size_bytes", (int64_t{1} << 40) + 1}}}) {
    EXPECT_EQ(read_packing(bad, {}).status().code(), StatusCode::kInvalidArgument) << bad.dump();
  }
}

}  // namespace
}  // namespace millrace::api
