#include "payload/inline_parts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "payload/packing.h"
#include "wire/limits.h"

namespace millrace {
namespace {

SharedTensor tensor(DType dtype, int64_t elements) {
  Buffer buffer(static_cast<std::size_t>(elements) * dtype_size(dtype));
  for (std::size_t i = 0; i < buffer.size_bytes(); ++i) buffer.data()[i] = static_cast<std::byte>(i * 7 + 1);
  return {.dtype = dtype, .shape = {elements}, .bytes = SharedBytes(std::move(buffer))};
}

wire::Payload payload_of(const Value& value, bool& is_inline) {
  Lifted lifted = lift(value).value();
  wire::Payload payload{.tree = {lifted.tree}, .tensors = lifted.tensors};
  is_inline = put_inline(lifted.parts, payload);
  return payload;
}

TEST(InlineParts, SmallTensorsComeBack) {
  // Parts of odd sizes: the second one would not be aligned behind the first.
  Value value(ValueMap{{"bytes", tensor(DType::kU8, 3)}, {"numbers", tensor(DType::kF64, 5)}, {"n", 7}});
  bool is_inline = false;
  const wire::Payload payload = payload_of(value, is_inline);
  ASSERT_TRUE(is_inline);
  EXPECT_EQ(payload.inline_bytes.bytes.size(), 43u);
  EXPECT_FALSE(payload.in_relay());
  EXPECT_TRUE(wire::validate(payload).ok()) << wire::validate(payload).to_string();
  const auto back = restore_inline(payload);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(same_bits(*back, value));
}

TEST(InlineParts, AValueWithoutBytesIsItsTree) {
  bool is_inline = false;
  const wire::Payload payload = payload_of(Value("text"), is_inline);
  EXPECT_TRUE(is_inline);
  EXPECT_TRUE(payload.inline_bytes.bytes.empty());
  EXPECT_TRUE(same_bits(*restore_inline(payload), Value("text")));
}

TEST(InlineParts, TheLimitIsOfAllPartsTogether) {
  const auto limit = static_cast<int64_t>(wire::kMaxInlineBytes);
  bool is_inline = false;
  payload_of(Value(ValueList{Value(tensor(DType::kU8, limit - 10)), Value(tensor(DType::kU8, 10))}), is_inline);
  EXPECT_TRUE(is_inline);
  const wire::Payload large =
      payload_of(Value(ValueList{Value(tensor(DType::kU8, limit - 10)), Value(tensor(DType::kU8, 11))}), is_inline);
  EXPECT_FALSE(is_inline);
  EXPECT_TRUE(large.inline_bytes.bytes.empty());
  EXPECT_EQ(large.part_bytes, (std::vector<uint64_t>{wire::kMaxInlineBytes - 10, 11}));
}

TEST(InlineParts, SizesThatDisagreeAreRefused) {
  bool is_inline = false;
  const wire::Payload good = payload_of(Value(tensor(DType::kU8, 8)), is_inline);
  for (const auto& change : {+[](wire::Payload& p) { p.inline_bytes.bytes.pop_back(); },
                             +[](wire::Payload& p) { p.inline_bytes.bytes.push_back('x'); },
                             +[](wire::Payload& p) { p.part_bytes[0] = ~uint64_t{0}; }}) {
    wire::Payload bad = good;
    change(bad);
    EXPECT_EQ(restore_inline(bad).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(wire::validate(bad).ok());
  }
}

TEST(InlineParts, DeviceMemoryGoesByRelay) {
  static const std::byte data[8] = {};
  const std::vector<SharedBytes> parts = {SharedBytes(nullptr, data, 8, Device::kCuda)};
  wire::Payload payload;
  EXPECT_FALSE(put_inline(parts, payload));
  EXPECT_TRUE(payload.inline_bytes.bytes.empty());
}

}  // namespace
}  // namespace millrace
