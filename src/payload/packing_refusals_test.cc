// What lift() and restore() refuse, and with which message.
#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "payload/packing.h"
#include "payload/testing/random_value.h"
#include "wire/limits.h"

namespace millrace {
namespace {

SharedTensor floats(int64_t count) {
  Buffer buffer(static_cast<std::size_t>(count) * 4);
  for (std::byte& byte : buffer.as<std::byte>()) byte = std::byte{1};
  return {DType::kF32, {count}, SharedBytes(std::move(buffer))};
}

Lifted lifted_pair() {
  auto lifted = lift(ValueMap{{"a", floats(4)}, {"b", ValueList{floats(2)}}});
  EXPECT_TRUE(lifted.ok());
  return std::move(*lifted);
}

void expect_refused(const Lifted& lifted, std::string_view part) {
  const auto back = restore(lifted.tree, lifted.tensors, lifted.parts);
  ASSERT_FALSE(back.ok()) << part;
  EXPECT_EQ(back.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(back.status().message().find(part), std::string::npos) << back.status().message();
}

void expect_tree_refused(std::string tree, std::string_view part) { expect_refused({.tree = std::move(tree)}, part); }

void expect_not_lifted(const Value& value, StatusCode code, std::string_view part) {
  const auto lifted = lift(value);
  ASSERT_FALSE(lifted.ok()) << part;
  EXPECT_EQ(lifted.status().code(), code);
  EXPECT_NE(lifted.status().message().find(part), std::string::npos) << lifted.status().message();
}

Value nested(int depth) {
  Value value;
  for (int level = 0; level < depth; ++level) value = ValueList{std::move(value)};
  return value;
}

TEST(Refusals, TreesThatAreNotOurs) {
  using namespace std::string_literals;
  expect_tree_refused("", "the end at byte 0");
  expect_tree_refused("\xc1", "byte 0xc1 at byte 0");
  expect_tree_refused("\xc0\xc0", "bytes from 1 on, after the end of the tree");
  expect_tree_refused("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "does not fit a signed 64-bit integer");
  expect_tree_refused("\x92\x01\xa2\xc3\x28", "at [1]: byte 0xc3 at offset 0 of a string; wanted UTF-8");
  expect_tree_refused("\x81\xa1\xff\xc0", "byte 0xff at offset 0 of a key; wanted UTF-8");
  expect_tree_refused("\x82\xa1k\x01\xa1k\x02", "key \"k\" stands in the map twice");
  expect_tree_refused("\x81\x01\x02", "wanted a string");
  expect_tree_refused("\x81\xa1k\xd6\x02\0\0\0\0"s, "at k: an extension of type 2 and 4 bytes");
  expect_tree_refused("\xd5\x01\0\0"s, "of type 1 and 2 bytes");
  expect_tree_refused("\xd6\x01\0\0\0\0"s, "tensor 0; wanted one below 0");
  expect_tree_refused("\xdd\xff\xff\xff\xff"s, "4294967295 elements; wanted at most 65535");
  expect_tree_refused("\x93\xc0"s, "3 elements declared where 1 bytes are left");
  expect_tree_refused("\xc6\x7f\xff\xff\xff", "wanted at most 16777216");
  expect_tree_refused(std::string(kMaxValueDepth + 1, '\x91') + "\xc0", "a container inside 32 others");
  expect_tree_refused(std::string(100'000, '\x91'), "a container inside 32 others");
  expect_tree_refused(std::string(wire::kMaxTreeBytes + 1, '\xc0'), "a tree of 16777217 bytes");
  EXPECT_TRUE(restore(std::string(kMaxValueDepth, '\x91') + "\xc0", {}, {}).ok());
}

TEST(Refusals, ALargeMapWithAKeyTwice) {
  std::string tree = std::string("\xde\x01\x2c", 3);  // 300 entries
  for (int i = 0; i < 300; ++i) tree += fmt::format("\xa3{:03}\xc0", i == 299 ? 17 : i);
  expect_tree_refused(tree, "key \"017\" stands in the map twice");
}

TEST(Refusals, IndexesAndPaths) {
  Lifted lifted = lifted_pair();
  const std::size_t last = lifted.tree.size() - 1;
  lifted.tree[last] = 0;
  expect_refused(lifted, "at b[0]: tensor 0 for the second time");
  lifted = lifted_pair();
  lifted.tree[last] = 2;
  expect_refused(lifted, "at b[0]: tensor 2; wanted one below 2");
  lifted = lifted_pair();
  lifted.tree = "\xc0";
  expect_refused(lifted, "tensor 0 of 2 is not in the tree");
  lifted = lifted_pair();
  lifted.tensors[1].path = "b[1]";
  expect_refused(lifted, "at b[0]: tensor 1, whose path is stated as \"b[1]\"");
  lifted = lifted_pair();
  lifted.tensors[0].path = std::string(wire::kMaxPathBytes + 1, '\xff');
  expect_refused(lifted, "a path of 1025 bytes");
}

TEST(Refusals, DescriptionsOfTensors) {
  const auto changed = [](auto change, std::string_view part) {
    Lifted lifted = lifted_pair();
    change(lifted.tensors[0], lifted);
    expect_refused(lifted, part);
  };
  using Info = wire::TensorInfo;
  changed([](Info& i, Lifted&) { i.dtype = "F31"; }, "tensor a: dtype \"F31\" is unknown");
  changed([](Info& i, Lifted&) { i.shape.assign(9, 1); }, "rank 9; wanted at most 8");
  changed([](Info& i, Lifted&) { i.shape = {-4}; }, "extent 0 of the shape is -4; wanted at least 0");
  changed([](Info& i, Lifted&) { i.shape = {-2, -2}; }, "extent 0 of the shape is -2");
  changed([](Info& i, Lifted&) { i.shape = {1ll << 62, 4}; }, "a shape of more than");
  changed([](Info& i, Lifted&) { i.shape = {1ll << 62, 1ll << 62, 0}; }, "a shape of more than");
  changed([](Info& i, Lifted&) { i.shape = {5}; }, "16 bytes for F32 [5]; wanted 20");
  changed([](Info& i, Lifted&) { i.size = 12; }, "12 bytes for F32 [4]; wanted 16");
  changed([](Info& i, Lifted&) { i.part = 2; }, "part 2; wanted one below 2");
  changed([](Info& i, Lifted&) { i.part = 1; }, "16 bytes at offset 0 of a part that has 8");
  changed([](Info& i, Lifted&) { i.offset = 4; }, "16 bytes at offset 4 of a part that has 16");
  changed([](Info& i, Lifted&) { i.offset = ~uint64_t{0} - 3; }, "of a part that has 16");
  changed([](Info& i, Lifted&) { i.shape = {3}, i.size = 12, i.offset = 2; }, "offset 2 is unaligned for F32");
  changed([](Info& i, Lifted&) { i.shape = {0}, i.size = 0, i.offset = 4; }, "part 0, offset 4 of a tensor without");
  changed([](Info& i, Lifted&) { i.shape = {0}, i.size = 0; }, "2 parts of which the tensors use 1");
  changed([](Info&, Lifted& l) { l.parts.pop_back(); }, "tensor b[0]: part 1; wanted one below 1");
  changed([](Info&, Lifted& l) { l.parts.push_back(l.parts[0]); }, "3 parts of which the tensors use 2");
  changed([](Info&, Lifted& l) { l.parts[1] = l.parts[1].slice(0, 4); }, "8 bytes at offset 0 of a part that has 4");
  changed([](Info&, Lifted& l) { l.tensors.resize(kMaxValueTensors + 1); }, "4097 tensors; wanted at most 4096");
  changed(
      [](Info&, Lifted& l) {
        l.tensors[1].part = 0, l.tensors[1].offset = 8;
        l.parts.pop_back();
      },
      "tensor b[0]: its 8 bytes at offset 8 of part 0 overlap those of tensor a");
  // A part at an odd address: what as<float>() of it would be, is undefined.
  changed(
      [](Info&, Lifted& l) {
        Buffer odd(17);
        l.parts[0] = SharedBytes(std::move(odd)).slice(1, 16);
      },
      "offset 0 is unaligned for F32");
}

// A list of a string and four times `last`, which takes so many bytes: the tree is lifted to its last byte.
TEST(Refusals, ATreeIsAsLargeAsTheReceiverTakesIt) {
  const auto list = [](std::size_t text_bytes, const Value& last) {
    return Value(ValueList{std::string(text_bytes, 'x'), last, last, last, last});
  };
  // No pair, whose constructor moves a Value: with sanitizers GCC 12 takes what that leaves for uninitialized.
  struct Case {
    Value last;
    std::size_t bytes;
  };
  const Case cases[] = {{Value(), 1}, {Value(0.5), 9}, {Value(ValueList{}), 1}, {floats(1), 6}};
  for (const auto& [last, bytes] : cases) {
    SCOPED_TRACE(bytes);
    const std::size_t text_bytes = wire::kMaxTreeBytes - 1 - 5 - 4 * bytes;  // the heads of list and string
    const auto lifted = lift(list(text_bytes, last));
    ASSERT_TRUE(lifted.ok()) << lifted.status().to_string();
    EXPECT_EQ(lifted->tree.size(), wire::kMaxTreeBytes);
    EXPECT_TRUE(restore(lifted->tree, lifted->tensors, lifted->parts).ok());
    for (std::size_t over = 1; over <= 4 * bytes; over += 2 * bytes - 1) {
      expect_not_lifted(list(text_bytes + over, last), StatusCode::kTooLarge, "wanted at most 16777216");
    }
  }
}

TEST(Refusals, WhatTheReceiverWouldRefuseIsNotLifted) {
  expect_not_lifted(nested(kMaxValueDepth + 1), StatusCode::kTooLarge, "a container inside 32 others");
  expect_not_lifted(nested(1000), StatusCode::kTooLarge, "a container inside 32 others");
  expect_not_lifted(ValueList(kMaxValueNodes), StatusCode::kTooLarge, "more than 65536 values");
  EXPECT_TRUE(lift(ValueList(kMaxValueNodes - 1)).ok());
  expect_not_lifted(ValueBytes{std::string(wire::kMaxTreeBytes, 'x')}, StatusCode::kTooLarge,
                    "wanted at most 16777216");
  expect_not_lifted(ValueMap{{"k", ValueList{"ok", "\xed\xa0\x80"}}}, StatusCode::kInvalidArgument,
                    "payload: at k[1]: byte 0xed at offset 0 of a string; wanted UTF-8");
  expect_not_lifted(ValueMap{{"\xff", 1}}, StatusCode::kInvalidArgument, "of a key; wanted UTF-8");
  expect_not_lifted(ValueMap{{"k", 1}, {"k", 1}}, StatusCode::kInvalidArgument, "key \"k\" stands in the map twice");
  expect_not_lifted(ValueMap{{std::string(wire::kMaxPathBytes + 1, 'k'), 1}}, StatusCode::kTooLarge,
                    "a key of 1025 bytes; wanted at most 1024");
  const std::string key(600, 'k');
  expect_not_lifted(ValueMap{{key, ValueMap{{key, floats(1)}}}}, StatusCode::kTooLarge,
                    "a tensor's path of 1201 bytes");
  expect_not_lifted(ValueList(kMaxValueTensors + 1, floats(1)), StatusCode::kTooLarge, "more than 4096 tensors");
  SharedTensor wrong = floats(4);
  wrong.shape = {5};
  expect_not_lifted(ValueList{wrong}, StatusCode::kInvalidArgument,
                    "at [0]: a tensor F32 [5] that holds 16 bytes; wanted 20");
  wrong.shape = {-1};
  expect_not_lifted(wrong, StatusCode::kInvalidArgument, "at the root: extent 0 of the shape is -1");
  wrong = floats(4);
  wrong.bytes = wrong.bytes.slice(1, 12);
  wrong.shape = {3};
  expect_not_lifted(wrong, StatusCode::kInvalidArgument, "unaligned for F32");
}

TEST(Refusals, TheLargestPayloadGoes) {
  ValueList list;
  for (std::size_t i = 0; i < kMaxValueTensors; ++i) list.emplace_back(floats(1));
  const Value value = std::move(list);
  const auto lifted = lift(value);
  ASSERT_TRUE(lifted.ok()) << lifted.status().to_string();
  EXPECT_EQ(lifted->parts.size(), kMaxValueTensors);
  const Lifted packed = pack(*lifted);
  EXPECT_EQ(packed.parts[0].size_bytes(), (kMaxValueTensors - 1) * kBufferAlignment + 4);
  const auto back = restore(packed.tree, packed.tensors, packed.parts);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(same_bits(*back, value));
}

// ---- mutations

class Mutations {
 public:
  explicit Mutations(uint64_t seed) : random_(seed), values_(seed) {}
  uint64_t below(uint64_t end) { return random_() % end; }

  void bytes(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(3)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        text.insert(at, 1, static_cast<char>(random_()));
        return;
      default:
        if (at < text.size()) text.erase(at, 1 + below(3));
    }
  }

  void number(uint64_t& n) {
    static constexpr uint64_t kHard[] = {0, 1, 2, 3, 64, 4096, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}};
    n = below(2) ? n + below(17) - 8 : kHard[below(std::size(kHard))];
  }

  void infos(std::vector<wire::TensorInfo>& infos) {
    if (infos.empty() || below(8) == 0) {
      const std::size_t at = below(infos.size() + 1);
      if (at == infos.size() || below(2)) {
        infos.insert(infos.begin() + static_cast<std::ptrdiff_t>(at), infos.empty() ? wire::TensorInfo{} : infos[0]);
      } else {
        infos.erase(infos.begin() + static_cast<std::ptrdiff_t>(at));
      }
      return;
    }
    wire::TensorInfo& info = infos[below(infos.size())];
    uint64_t n = info.part;
    switch (below(7)) {
      case 0:
        return bytes(info.path);
      case 1:
        return bytes(info.dtype);
      case 2:
        number(n);
        info.part = static_cast<uint32_t>(n);
        return;
      case 3:
        return number(info.offset);
      case 4:
        return number(info.size);
      case 5:
        if (below(2) || info.shape.empty()) return info.shape.resize(below(11), static_cast<int64_t>(below(3)));
        n = static_cast<uint64_t>(info.shape[0]);
        number(n);
        info.shape[0] = static_cast<int64_t>(n);
        return;
      default:
        std::swap(info, infos[below(infos.size())]);
    }
  }

  Value value() { return values_.next(20); }

 private:
  std::mt19937_64 random_;
  testing::RandomValues values_;
};

bool inside(const SharedBytes& bytes, const std::vector<SharedBytes>& parts) {
  for (const SharedBytes& part : parts) {
    if (bytes.data() >= part.data() && bytes.data() + bytes.size_bytes() <= part.data() + part.size_bytes())
      return true;
  }
  return bytes.empty();
}

void expect_inside(const Value& value, const std::vector<SharedBytes>& parts) {
  if (const auto* list = value.get<ValueList>()) {
    for (const Value& child : *list) expect_inside(child, parts);
  } else if (const auto* map = value.get<ValueMap>()) {
    for (const auto& [key, child] : *map) expect_inside(child, parts);
  } else if (const auto* tensor = value.get<SharedTensor>()) {
    ASSERT_EQ(tensor->view().size_bytes(), tensor->bytes.size_bytes());
    ASSERT_TRUE(inside(tensor->bytes, parts));
  }
}

TEST(Refusals, MutatedPayloadsNeverLeadOutsideTheirParts) {
  Mutations mutations(11);
  int taken = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto lifted = lift(mutations.value());
    ASSERT_TRUE(lifted.ok());
    Lifted mutated = mutations.below(2) ? pack(*lifted) : *lifted;
    for (uint64_t left = 1 + mutations.below(3); left > 0; --left) {
      if (mutations.below(2)) {
        mutations.bytes(mutated.tree);
      } else {
        mutations.infos(mutated.tensors);
      }
    }
    const auto back = restore(mutated.tree, mutated.tensors, mutated.parts);
    if (!back.ok()) {
      ++refused;
      ASSERT_EQ(back.status().code(), StatusCode::kInvalidArgument);
      ASSERT_LE(back.status().message().size(), 1000u);
      ASSERT_TRUE(is_utf8(back.status().message()));
      continue;
    }
    ++taken;
    expect_inside(*back, mutated.parts);
    const auto again = lift(*back);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace millrace
