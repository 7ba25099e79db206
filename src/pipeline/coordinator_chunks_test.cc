// Batches of chunks, and the acknowledgements of what their clients have taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "payload/inline_parts.h"
#include "pipeline/testing/coordinator_harness.h"

namespace millrace::testing {
namespace {

const std::vector<std::string> kDecodeAlone = {"decode"};

using CoordinatorChunks = CoordinatorHarness;

// One batch has chunks of several requests; each sink gets its own in order, and a bad one costs its request alone.
TEST_F(CoordinatorChunks, ABatchServesManyRequests) {
  Client one, two, bad;
  const ReqId first = submit(one, {.terminals = kDecodeAlone}), second = submit(two, {.terminals = kDecodeAlone});
  const ReqId third = submit(bad, {.terminals = kDecodeAlone});
  wire::ChunkBatch batch{.from = from("decode")};
  const auto add = [&batch](ReqId id, uint64_t seq, wire::ChunkBody body) {
    batch.chunks.push_back({.id = id, .seq = seq, .body = std::move(body)});
  };
  const auto text = [](const char* word) { return wire::StreamValue{"text", in_tree(Value(word))}; };
  add(first, 0, text("a")), add(second, 0, text("x")), add(third, 0, text("u"));
  add(first, 1, text("b")), add(third, 1, wire::Failure{StatusCode::kTooLarge, "no"});
  batch.chunks.back().seq = 0;
  add(second, 1, wire::StageResult{in_tree(Value("second"))});
  add(ReqId{77}, 0, text("late"));
  core->handle(std::move(batch), now);
  EXPECT_EQ(one.texts(), "ab");
  EXPECT_EQ(one.ends, 0);
  EXPECT_EQ(two.texts(), "x");
  EXPECT_TRUE(same_bits(two.end.result, Value("second")));
  EXPECT_EQ(bad.texts(), "u");
  EXPECT_EQ(bad.end.status.code(), StatusCode::kTooLarge);
  EXPECT_EQ(core->books().late, 1u);
}

TEST_F(CoordinatorChunks, SmallTensorsAreInTheMessage) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  Buffer buffer(100);
  std::fill_n(buffer.as<uint8_t>().begin(), 100, uint8_t{7});
  const SharedTensor tensor{.dtype = DType::kU8, .shape = {100}, .bytes = SharedBytes(std::move(buffer))};
  const auto small = [&tensor] {
    Lifted lifted = lift(Value(tensor)).value();
    wire::Payload payload{.tree = {lifted.tree}, .tensors = lifted.tensors};
    EXPECT_TRUE(put_inline(lifted.parts, payload));
    return payload;
  };
  chunk(id, "decode", 0, small());
  complete(id, "decode", small(), 1);
  EXPECT_TRUE(payloads.open.empty());
  ASSERT_EQ(client.chunks.size(), 1u);
  EXPECT_TRUE(same_bits(client.chunks[0].value_chunk()->value, Value(tensor)));
  ASSERT_EQ(client.ends, 1);
  EXPECT_TRUE(same_bits(client.end.result, Value(tensor)));
  expect_quiet();
}

// Text passes to its sink at once, unless something of its request waits: then it keeps its place.
TEST_F(CoordinatorChunks, TextPassesAtOnceUnlessSomethingWaits) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  const auto text = [&](uint64_t seq, const char* word) {
    chunk_of(id, from("decode"), wire::TextDelta{.id = id, .text = word, .tokens = {7}}, seq);
  };
  const auto words = [&client] {
    std::string out;
    for (const RequestEvent& event : client.chunks) out += event.text() ? event.text()->text : "*";
    return out;
  };
  text(0, "a");
  EXPECT_EQ(words(), "a");
  EXPECT_EQ(client.chunks[0].stage, "decode");
  EXPECT_EQ(core->books().queued_chunks, 0u);
  client.full = true;
  text(1, "b"), text(2, "c");
  EXPECT_EQ(core->books().queued_chunks, 2u);
  client.full = false;
  text(2, "repeated");
  text(3, "d");
  EXPECT_EQ(words(), "abcd");
  chunk(id, "decode", 4, through_relay("late"));
  text(5, "f");
  EXPECT_EQ(words(), "abcd");
  complete(id, "decode", in_tree(Value("end")), 6);
  EXPECT_EQ(client.ends, 0);
  payloads.finish("late", Value("e"));
  core->tick(now);
  EXPECT_EQ(words(), "abcd*f");
  EXPECT_EQ(client.ends, 1);
  expect_quiet();
}

// ---- the window of what streams to a client

TEST_F(CoordinatorChunks, WhatTheClientHasTakenIsAcknowledged) {
  Client client;
  const ReqId id = submit(client);
  const auto acks = [this] {
    std::vector<uint64_t> out;
    for (const auto& batch : box("decode").take<wire::AckBatch>()) {
      EXPECT_EQ(batch.from, (wire::Origin{.session = kSession}));
      EXPECT_EQ(batch.to, "decode");
      for (const wire::Ack& ack : batch.acks) out.push_back(ack.count);
    }
    return out;
  };
  for (uint64_t i = 0; i < 40; ++i) chunk(id, "decode", i, in_tree(Value("x")));
  EXPECT_EQ(acks(), std::vector<uint64_t>{32});
  now += kClientAckMs;
  core->tick(now);
  EXPECT_EQ(acks(), std::vector<uint64_t>{40});
  client.full = true;
  for (uint64_t i = 40; i < 100; ++i) chunk(id, "decode", i, in_tree(Value("x")));
  now += kClientAckMs;
  core->tick(now);
  EXPECT_EQ(acks(), std::vector<uint64_t>{});
  client.full = false;
  core->client_ready(id, now);
  EXPECT_EQ(acks(), std::vector<uint64_t>{100});
  // A word that may be lost is repeated, ever more rarely, until the terminal has completed.
  pass(500 + 1000 + 2000);
  EXPECT_EQ(acks(), (std::vector<uint64_t>{100, 100, 100}));
  complete(id, "decode", in_tree(Value("text")), 100);
  pass(10'000);
  EXPECT_EQ(acks(), std::vector<uint64_t>{});
  for (const auto& batch : box("tone").take<wire::AckBatch>()) {
    for (const wire::Ack& ack : batch.acks) EXPECT_EQ(ack.count, 0u);
  }
  core->cancel(id, now);
  acknowledge_aborts();
  expect_quiet();
}

// Asked again and again how far the client is, a terminal that has sent everything answers with a failure.
TEST_F(CoordinatorChunks, ATerminalThatHasSentAllFailsWhatLacksAChunk) {
  Client client, slow;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  chunk(id, "decode", 0, in_tree(Value("a")));
  fail(id, "decode", StatusCode::kUnavailable, "'decode' has sent all of its chunks; wanted chunk 1: one is lost");
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
  // The result crossed the question, and the client has yet to take the rest.
  const ReqId complete_one = submit(slow, {.terminals = kDecodeAlone});
  slow.full = true;
  chunk(complete_one, "decode", 0, in_tree(Value("a")));
  complete(complete_one, "decode", in_tree(Value("end")), 1);
  fail(complete_one, "decode", StatusCode::kUnavailable, "'decode' has sent all of its chunks");
  EXPECT_EQ(slow.ends, 0);
  slow.full = false;
  core->client_ready(complete_one, now);
  ASSERT_EQ(slow.ends, 1);
  EXPECT_TRUE(slow.end.status.ok());
  acknowledge_aborts();
  expect_quiet();
}

// Its window is full, so no chunk follows that would show the gap.
TEST_F(CoordinatorChunks, ATerminalThatHasSentMoreFailsWhatLacksAChunk) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  chunk(id, "decode", 0, in_tree(Value("a")));
  chunk_of(id, from("decode"), wire::SentCount{1});
  EXPECT_EQ(client.ends, 0);
  chunk_of(id, from("decode"), wire::SentCount{257});
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(client.end.status.message().find("257 chunks of the answer were sent; wanted chunk 1: one is lost"),
            std::string::npos)
      << client.end.status.message();
  acknowledge_aborts();
  expect_quiet();
}

// What a terminal sends first may be lost too.
TEST_F(CoordinatorChunks, ATerminalIsAskedThoughNothingHasCome) {
  Client client;
  submit(client, {.terminals = kDecodeAlone});
  pass(500 + 1000 + 2000);
  std::vector<wire::Ack> acks;
  for (const auto& batch : box("decode").take<wire::AckBatch>()) {
    acks.insert(acks.end(), batch.acks.begin(), batch.acks.end());
  }
  ASSERT_EQ(acks.size(), 3u);
  for (const wire::Ack& ack : acks) {
    EXPECT_EQ(ack.count, 0u);
    EXPECT_TRUE(ack.repeated);
  }
  chunk_of(ReqId{acks[0].id}, from("decode"), wire::SentCount{256});
  EXPECT_EQ(client.ends, 1);
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorChunks, ManyBytesAreAcknowledgedSooner) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  const std::string megabyte(1 << 20, 'x');
  chunk(id, "decode", 0, in_tree(Value(megabyte)));
  EXPECT_TRUE(box("decode").take<wire::AckBatch>().empty());
  chunk(id, "decode", 1, in_tree(Value(megabyte)));
  EXPECT_EQ(box("decode").take<wire::AckBatch>().size(), 1u);
  core->cancel(id, now);
  pass(1000);
  EXPECT_TRUE(box("decode").take<wire::AckBatch>().empty());
}

}  // namespace
}  // namespace millrace::testing
