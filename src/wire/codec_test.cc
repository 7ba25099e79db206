#include "wire/codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "wire/limits.h"
#include "wire/testing/frames.h"
#include "wire/testing/samples.h"

namespace millrace::wire {
namespace {

using testing::sample_request;
using testing::sample_tokens;

const Origin kScheduler = {.session = 1, .stage = "scheduler", .incarnation = 3};

Submit with(TokenizedRequest request) {
  return {.id = ReqId{9}, .from = {.session = 1}, .payload = {.tree = {"\xc0"}}, .generate = std::move(request)};
}

ChunkBatch sample_text() {
  ChunkBatch batch{.from = kScheduler};
  batch.chunks.push_back(
      {.id = ReqId{1}, .body = TextDelta{.id = ReqId{1}, .accepted = true, .text = "zażółć", .tokens = {9}}});
  return batch;
}

StageStatus sample_status() {
  return {.stage = "scheduler",
          .incarnation = 3,
          .state = StageState::kReady,
          .progress = 0.5,
          .steps = 9,
          .weight_version = 1,
          .metrics = {{"num_retractions_total", 4}},
          .replica = 2,
          .peers_epoch = 70'000,
          .weights_checksum = 0xFEDCBA9876543210,
          .text_checksum = 5,
          .frozen_checksum = 6};
}

AdminRequest sample_admin_request() {
  return {.id = 3,
          .action = AdminAction::kSwitchWeights,
          .argument = "/tmp/x",
          .timeout_ms = 2500,
          .weight_version = 7,
          .policy = InFlightPolicy::kAbort,
          .flush_cache = true,
          .weights_checksum = 11};
}

AdminReply sample_reply() { return {.id = 3, .stage = "scheduler", .message = "done", .weights = {12, 4}}; }

ChunkBatch sample_batch() {
  ChunkBatch batch{.from = kScheduler, .to = "detokenizer"};
  for (int i = 0; i < 40; ++i) {
    batch.chunks.push_back({.id = ReqId{static_cast<uint64_t>(i)}, .seq = 4294967295, .body = sample_tokens(i)});
  }
  return batch;
}

std::vector<Message> all_kinds() {
  return {with(sample_request()), AbortRequest{ReqId{7}}, sample_batch(), sample_text(),
          sample_status(),        sample_admin_request(), sample_reply()};
}

// Equality through the wire form: two messages are the same when they encode to the same bytes.
std::string bytes_of(const Message& message) {
  auto frame = encode(message);
  EXPECT_TRUE(frame.ok()) << frame.status().to_string();
  return *frame;
}

TEST(Codec, EveryMessageComesBackAsItWas) {
  for (const Message& message : all_kinds()) {
    const std::string frame = bytes_of(message);
    auto back = decode(frame);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back->index(), message.index());
    EXPECT_EQ(bytes_of(*back), frame);
  }
  auto back = decode(bytes_of(with(sample_request())));
  const TokenizedRequest& request = *std::get<Submit>(*back).generate;
  EXPECT_EQ(request.prompt, sample_request().prompt);
  EXPECT_EQ(request.sampling.seed, 18446744073709551615ull);
  EXPECT_EQ(request.sampling.stop, sample_request().sampling.stop);
  EXPECT_DOUBLE_EQ(request.sampling.top_p, 0.9);
}

TEST(Codec, EveryTruncationIsRefused) {
  for (const Message& message : all_kinds()) {
    const std::string frame = bytes_of(message);
    for (std::size_t size = 0; size < frame.size(); ++size) {
      EXPECT_FALSE(decode(std::span(frame.data(), size)).ok()) << "message " << message.index() << " cut at " << size;
    }
    EXPECT_FALSE(decode(frame + '\0').ok());
  }
}

TEST(Codec, MutatedFramesNeverCrashAndNeverGrow) {
  std::mt19937_64 random(7);
  for (const Message& message : all_kinds()) {
    const std::string frame = bytes_of(message);
    for (int round = 0; round < 3000; ++round) {
      const std::string mutated = testing::mutated_frame(frame, random);
      auto back = decode(mutated);
      // What decodes must be a message: it encodes again, and no larger than the frame plus its shortest-form savings.
      if (back.ok()) {
        EXPECT_LE(bytes_of(*back).size(), mutated.size());
      }
    }
  }
}

TEST(Codec, RefusalsNameTheValueSeenAndTheValueWanted) {
  auto expect_message = [](std::string frame, std::string_view part) {
    auto back = decode(frame);
    ASSERT_FALSE(back.ok());
    EXPECT_NE(back.status().message().find(part), std::string::npos) << back.status().message();
  };
  std::string frame = bytes_of(AbortRequest{ReqId{7}});
  std::string wrong_version = frame;
  wrong_version[2] = 8;
  expect_message(wrong_version, fmt::format("wire version 8; wanted {}", kWireVersion));
  std::string wrong_type = frame;
  wrong_type[4] = 77;
  expect_message(wrong_type, "message type 77 is unknown");
  std::string unknown_field = frame;
  unknown_field[7] = 33;
  expect_message(unknown_field, "field 33 is unknown");
  // An acknowledgement of a replica that has no number of 32 bits.
  expect_message(std::string("\x83\x00\x19\x01\x0c\x02\x82\x01\x01\x02\x84\x01\x01\x02\xa0\x03\xcf\x00\x00\x00\x01"
                             "\x00\x00\x00\x00\x04\x01",
                             27),
                 "4294967296 is out of range");
  // An array that declares 4 billion chunks in a ten-byte frame.
  expect_message(std::string("\x83\x00\x19\x01\x12\x02\x81\x03\xdd\xff\xff\xff\xff", 13), "wanted at most 4096");
  expect_message(std::string("\x83\x00\x19\x01\x12\x02\x81\x03\xdd\x00\x00\x0f\xff", 13), "bytes are left");
}

TEST(Codec, WhatTheReceiverWouldRefuseIsNotSent) {
  const auto refused = [](const Message& message, std::string_view part) {
    auto frame = encode(message);
    ASSERT_FALSE(frame.ok()) << part;
    EXPECT_EQ(frame.status().code(), StatusCode::kTooLarge);
    EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
  };
  TokenizedRequest request = sample_request();
  request.prompt.assign(kMaxPromptTokens, 1);
  EXPECT_TRUE(decode(bytes_of(with(request))).ok());
  request.prompt.push_back(1);
  refused(with(request), "2: 4194305 token ids; wanted at most 4194304");
  request = sample_request();
  request.sampling.stop.assign(kMaxStopStrings, std::string(kMaxStopStringBytes, 's'));
  EXPECT_TRUE(decode(bytes_of(with(request))).ok());
  request.sampling.stop.push_back("s");
  refused(with(request), "3: 7: 17 elements; wanted at most 16");
  request.sampling.stop = {std::string(kMaxStopStringBytes + 1, 's')};
  refused(with(request), "3: 7: 1025 bytes of text; wanted at most 1024");
  ChunkBatch batch = sample_text();
  batch.chunks.resize(kMaxBatchEntries, sample_text().chunks[0]);
  EXPECT_TRUE(decode(bytes_of(batch)).ok());
  batch.chunks.push_back(batch.chunks[0]);
  refused(batch, "3: 4097 elements; wanted at most 4096");
  batch.chunks.resize(1);
  batch.chunks[0].body = TextDelta{.text = std::string(kMaxTextBytes + 1, 't')};
  refused(batch, "bytes of text; wanted at most 16777216");
}

// tests/oracles/wire_frames.py writes the same messages with python3-msgpack.
TEST(Codec, FramesEqualTheOraclesBytes) {
  testing::expect_golden_frames({
      {"abort_request", AbortRequest{ReqId{7}}},
      {"chunk_batch_tokens", sample_batch()},
      {"chunk_batch_text", sample_text()},
      {"stage_status", sample_status()},
      {"admin_request", sample_admin_request()},
      {"admin_reply", sample_reply()},
  });
}

}  // namespace
}  // namespace millrace::wire
