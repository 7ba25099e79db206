// lift(), pack() and restore() against the trees that tests/oracles/payload_trees.py wrote with python3-msgpack, and
// against random payloads.
#include "payload/packing.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <limits>

#include "payload/testing/golden.h"
#include "payload/testing/random_value.h"

namespace millrace {
namespace {

// ---- the oracle's payloads, made once more

SharedBytes block(std::size_t size, int first) {
  Buffer buffer(size);
  for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i);
  return SharedBytes(std::move(buffer));
}

Value scalars() {
  ValueList integers;
  for (const int64_t n : {int64_t{0},           int64_t{127},
                          int64_t{128},         int64_t{255},
                          int64_t{256},         int64_t{65535},
                          int64_t{65536},       int64_t{4294967295},
                          int64_t{4294967296},  std::numeric_limits<int64_t>::max(),
                          int64_t{-1},          int64_t{-32},
                          int64_t{-33},         int64_t{-128},
                          int64_t{-129},        int64_t{-32768},
                          int64_t{-32769},      int64_t{-2147483648},
                          int64_t{-2147483649}, std::numeric_limits<int64_t>::min()}) {
    integers.emplace_back(n);
  }
  ValueList numbers = {0.0, -0.0, 1.5, std::numeric_limits<double>::infinity(),
                       -std::numeric_limits<double>::infinity()};
  for (const uint64_t bits : {uint64_t{1}, uint64_t{0x7FF8000000000123}, uint64_t{0xFFF8000000000000}}) {
    numbers.emplace_back(std::bit_cast<double>(bits));
  }
  return ValueMap{{"none", {}}, {"true", true}, {"false", false}, {"integers", integers}, {"numbers", numbers}};
}

Value text() {
  std::string accents;
  for (int i = 0; i < 127; ++i) accents += "é";
  return ValueMap{
      {"", ""},
      {"żółć", "😀"},
      {std::string("nul\0key", 7), std::string("a\0b", 3)},
      {"strings",
       ValueList{std::string(31, 'x'), std::string(32, 'x'), accents, std::string(255, 'x'), std::string(256, 'x')}},
      {"bytes", ValueList{ValueBytes{""}, ValueBytes{std::string("\0\xff\0", 3)}, ValueBytes{std::string(255, '\x80')},
                          ValueBytes{std::string(256, '\0')}}},
  };
}

Value containers() {
  ValueMap map;
  for (int i = 0; i < 16; ++i) map.emplace_back("key" + std::to_string(i), i);
  return ValueMap{{"empty", ValueList{ValueList{}, ValueMap{}}},
                  {"15", ValueList(15, Value(0))},
                  {"16", ValueList(16, Value(0))},
                  {"map", map}};
}

Value nested(int depth) {
  Value value = 7;
  for (int level = 0; level < depth; ++level) {
    value = level % 2 ? Value(ValueList{value}) : Value(ValueMap{{"k", value}});
  }
  return value;
}

Value tensors() {
  const SharedBytes shared = block(24, 100);
  return ValueMap{
      {"a", SharedTensor{DType::kBF16, {3}, block(6, 1)}},
      {"encoder", ValueMap{{"states", ValueList{SharedTensor{DType::kF32, {2, 3}, shared}, "between",
                                                SharedTensor{DType::kI64, {3}, shared}}}}},
      {"scalar", SharedTensor{DType::kF64, {}, block(8, 50)}},
      {"empty", SharedTensor{DType::kF16, {4, 0, 2}, {}}},
      {"u8", SharedTensor{DType::kU8, {1, 1, 1, 1, 1, 1, 1, 65}, block(65, 7)}},
      {"flags",
       ValueList{ValueList{SharedTensor{DType::kBool, {2}, block(2, 0)}, SharedTensor{DType::kI8, {1}, block(1, 9)}},
                 SharedTensor{DType::kI16, {2}, block(4, 20)}, SharedTensor{DType::kI32, {1}, block(4, 30)}}},
  };
}

TEST(Packing, EqualsTheOracle) {
  const std::vector<std::pair<std::string, Value>> cases = {
      {"null", {}},
      {"scalars", scalars()},
      {"text", text()},
      {"containers", containers()},
      {"deepest", nested(kMaxValueDepth)},
      {"root_tensor", SharedTensor{DType::kF32, {2, 3}, block(24, 0)}},
      {"tensors", tensors()},
  };
  for (const auto& [name, value] : cases) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/payload/" + name + ".msgpack",
                       std::ios::binary);
    ASSERT_TRUE(file);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const auto golden = testing::read_golden(bytes);
    ASSERT_TRUE(golden);
    const auto lifted = lift(value);
    ASSERT_TRUE(lifted.ok()) << lifted.status().to_string();
    EXPECT_EQ(lifted->tree, golden->tree);
    EXPECT_EQ(lifted->tensors, golden->tensors);
    std::vector<uint64_t> part_bytes;
    for (const SharedBytes& part : lifted->parts) part_bytes.push_back(part.size_bytes());
    EXPECT_EQ(part_bytes, golden->part_bytes);
    const Lifted packed = pack(*lifted);
    EXPECT_EQ(packed.tree, golden->tree);
    EXPECT_EQ(packed.tensors, golden->packed_tensors);
    std::string packed_bytes;
    for (const SharedBytes& part : packed.parts) {
      packed_bytes.append(reinterpret_cast<const char*>(part.data()), part.size_bytes());
    }
    EXPECT_EQ(packed_bytes, golden->packed);
    // The oracle's own files come back as the value that they are of.
    Buffer received(golden->packed.size());
    std::copy_n(reinterpret_cast<const std::byte*>(golden->packed.data()), golden->packed.size(), received.data());
    std::vector<SharedBytes> parts;
    if (!golden->packed.empty()) parts.emplace_back(std::move(received));
    const auto back = restore(golden->tree, golden->packed_tensors, parts);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_TRUE(same_bits(*back, value));
  }
}

TEST(Packing, NothingIsCopiedButTheTree) {
  const Value value = tensors();
  const auto lifted = lift(value);
  ASSERT_TRUE(lifted.ok());
  const auto& states = *value.find("encoder")->find("states")->get<ValueList>();
  EXPECT_EQ(lifted->parts[1].data(), states[0].get<SharedTensor>()->bytes.data());
  const auto back = restore(lifted->tree, lifted->tensors, lifted->parts);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->find("a")->get<SharedTensor>()->bytes.data(), value.find("a")->get<SharedTensor>()->bytes.data());
}

TEST(Packing, TensorsOutliveThePartsTheyCameIn) {
  Value back;
  {
    const auto lifted = lift(tensors());
    ASSERT_TRUE(lifted.ok());
    const Lifted packed = pack(*lifted);
    auto restored = restore(packed.tree, packed.tensors, packed.parts);
    ASSERT_TRUE(restored.ok());
    back = std::move(*restored);
  }
  EXPECT_TRUE(same_bits(back, tensors()));
}

TEST(Packing, EveryTensorOfAPackedBlockIsAligned) {
  const auto lifted = lift(tensors());
  ASSERT_TRUE(lifted.ok());
  const Lifted packed = pack(*lifted);
  ASSERT_EQ(packed.parts.size(), 1u);
  for (const wire::TensorInfo& info : packed.tensors) EXPECT_EQ(info.offset % kBufferAlignment, 0u) << info.path;
}

TEST(Packing, TenThousandRandomPayloadsComeBackBitForBit) {
  testing::RandomValues random(4);
  std::size_t tensors = 0;
  std::size_t shared = 0;
  for (int round = 0; round < 10'000; ++round) {
    const Value value = random.next();
    const auto lifted = lift(value);
    ASSERT_TRUE(lifted.ok()) << round << ": " << lifted.status().to_string();
    tensors += lifted->tensors.size();
    shared += lifted->tensors.size() - lifted->parts.size();
    const auto back = restore(lifted->tree, lifted->tensors, lifted->parts);
    ASSERT_TRUE(back.ok()) << round << ": " << back.status().to_string();
    ASSERT_TRUE(same_bits(*back, value)) << round;
    const Lifted packed = pack(*lifted);
    ASSERT_LE(packed.parts.size(), 1u);
    const auto unpacked = restore(packed.tree, packed.tensors, packed.parts);
    ASSERT_TRUE(unpacked.ok()) << round << ": " << unpacked.status().to_string();
    ASSERT_TRUE(same_bits(*unpacked, value)) << round;
  }
  // The generator makes what the test is about.
  EXPECT_GT(tensors, 5'000u);
  EXPECT_GT(shared, 500u);
}

}  // namespace
}  // namespace millrace
