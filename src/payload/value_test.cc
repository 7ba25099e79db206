#include "payload/value.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace millrace {
namespace {

TEST(Value, MapsKeepTheirSequenceAndEachKeyOnce) {
  Value value;
  EXPECT_EQ(kind_name(value), "null");
  value.set("b", 1);
  value.set("a", "x");
  value.set("b", 2.5);
  ASSERT_TRUE(value.is<ValueMap>());
  const auto& map = *value.get<ValueMap>();
  ASSERT_EQ(map.size(), 2u);
  EXPECT_EQ(map[0].first, "b");
  EXPECT_EQ(*map[0].second.get<double>(), 2.5);
  EXPECT_EQ(*value.find("a")->get<std::string>(), "x");
  EXPECT_EQ(value.find("c"), nullptr);
  EXPECT_EQ(Value(1).find("a"), nullptr);
}

TEST(Value, CopiesShareNothingButTensors) {
  Buffer buffer(4);
  Value value;
  value.set("list", ValueList{1, 2});
  value.set("tensor", SharedTensor{DType::kU8, {4}, SharedBytes(std::move(buffer))});
  Value copy = value;
  copy.get<ValueMap>()->at(0).second.get<ValueList>()->push_back(3);
  EXPECT_EQ(value.find("list")->get<ValueList>()->size(), 2u);
  EXPECT_EQ(value.find("tensor")->get<SharedTensor>()->bytes.data(),
            copy.find("tensor")->get<SharedTensor>()->bytes.data());
}

TEST(Value, SameBitsLooksAtBits) {
  EXPECT_TRUE(same_bits(std::nan("1"), std::nan("1")));
  EXPECT_FALSE(same_bits(std::nan("1"), std::nan("2")));
  EXPECT_FALSE(same_bits(0.0, -0.0));
  EXPECT_FALSE(same_bits(1, 1.0));
  EXPECT_FALSE(same_bits(true, 1));
  EXPECT_FALSE(same_bits(Value("a"), ValueBytes{"a"}));
  EXPECT_FALSE(same_bits(ValueList{}, ValueMap{}));
  EXPECT_FALSE(same_bits(ValueList{1}, ValueList{1, 2}));
  EXPECT_FALSE(same_bits(ValueMap{{"a", 1}, {"b", 2}}, ValueMap{{"b", 2}, {"a", 1}}));
  const auto tensor = [](DType dtype, Shape shape, int last) {
    Buffer buffer(8);
    for (int i = 0; i < 8; ++i) buffer.data()[i] = static_cast<std::byte>(i < 7 ? i : last);
    return Value(SharedTensor{dtype, shape, SharedBytes(std::move(buffer))});
  };
  EXPECT_TRUE(same_bits(tensor(DType::kF32, {2}, 7), tensor(DType::kF32, {2}, 7)));
  EXPECT_FALSE(same_bits(tensor(DType::kF32, {2}, 7), tensor(DType::kF32, {2}, 8)));
  EXPECT_FALSE(same_bits(tensor(DType::kF32, {2}, 7), tensor(DType::kI32, {2}, 7)));
  EXPECT_FALSE(same_bits(tensor(DType::kF32, {2}, 7), tensor(DType::kF32, {1, 2}, 7)));
}

TEST(Value, KindsHaveNames) {
  EXPECT_EQ(kind_name(true), "boolean");
  EXPECT_EQ(kind_name(1), "integer");
  EXPECT_EQ(kind_name(1.0), "number");
  EXPECT_EQ(kind_name("x"), "string");
  EXPECT_EQ(kind_name(ValueBytes{}), "bytes");
  EXPECT_EQ(kind_name(ValueList{}), "list");
  EXPECT_EQ(kind_name(ValueMap{}), "map");
  EXPECT_EQ(kind_name(SharedTensor{}), "tensor");
}

}  // namespace
}  // namespace millrace
