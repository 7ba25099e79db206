#include "pipeline/terminal_stream.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

wire::Chunk text_chunk(uint64_t seq, const std::string& text) {
  return {.seq = seq, .body = wire::TextDelta{.text = text, .tokens = {7}}};
}
wire::Chunk value_chunk(uint64_t seq) {
  return {.seq = seq, .body = wire::StreamValue{"audio", {.part_bytes = {100, 20}}}};
}

TEST(TerminalStream, ChunksAreNumberedWithoutAGapAndTheResultIsTheLast) {
  TerminalStream stream;
  EXPECT_TRUE(*stream.accept(0, false));
  EXPECT_FALSE(*stream.accept(0, false));  // a repetition
  EXPECT_EQ(stream.accept(2, false).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(stream.accept(0, true).status().code(), StatusCode::kInternal);  // a result over a chunk
  EXPECT_TRUE(*stream.accept(1, true));
  EXPECT_TRUE(stream.has_ended());
  EXPECT_FALSE(*stream.accept(1, true));
  EXPECT_FALSE(*stream.accept(0, false));
  EXPECT_EQ(stream.accept(2, false).status().code(), StatusCode::kInternal);
}

TEST(TerminalStream, AChunkThatIsBeingFetchedHoldsBackThoseBehindIt) {
  TerminalStream stream;
  wire::Chunk first = value_chunk(0), second = text_chunk(1, "ab");
  EXPECT_EQ(stream.push(first).bytes, 120u);
  EXPECT_EQ(stream.push(second).bytes, 2u + sizeof(int32_t));
  stream.set_result(Value("end"));
  EXPECT_EQ(stream.next(), nullptr);
  EXPECT_FALSE(stream.is_settled());
  stream.set_value(0, Value("sound"), true);
  EXPECT_TRUE(stream.is_settled());
  ASSERT_NE(stream.next(), nullptr);
  EXPECT_EQ(std::get<RequestEvent::ValueChunk>(stream.next()->body).modality, "audio");
  stream.pop();
  EXPECT_EQ(std::get<wire::TextDelta>(stream.next()->body).text, "ab");
  stream.pop();
  EXPECT_EQ(stream.next(), nullptr);
}

TEST(TerminalStream, WhatBelongsToARelayIsCopiedOnce) {
  Buffer buffer(4);
  std::fill_n(buffer.as<uint8_t>().begin(), 4, uint8_t{9});
  const SharedTensor tensor{.dtype = DType::kU8, .shape = {4}, .bytes = SharedBytes(std::move(buffer))};
  TerminalStream stream;
  wire::Chunk chunk = value_chunk(0);
  stream.push(chunk);
  stream.set_value(0, Value(ValueList{tensor, "word"}), true);
  stream.copy_borrowed();
  const auto list_of = [&stream]() -> const ValueList& {
    return *std::get<RequestEvent::ValueChunk>(stream.next()->body).value.get<ValueList>();
  };
  const ValueList& list = list_of();
  const auto* copy = list[0].get<SharedTensor>();
  EXPECT_NE(copy->bytes.data(), tensor.bytes.data());
  EXPECT_TRUE(same_bits(list[0], Value(tensor)));
  const void* before = copy->bytes.data();
  stream.copy_borrowed();
  EXPECT_EQ(list_of()[0].get<SharedTensor>()->bytes.data(), before);
}

}  // namespace
}  // namespace millrace
