#include "wire/codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "wire/limits.h"

namespace millrace::wire {
namespace {

TokenizedRequest sample_request() {
  TokenizedRequest request;
  request.id = ReqId{0x1122334455667788};
  request.prompt = {0, 1, -1, 2147483647, 151643};
  request.sampling = {.max_tokens = 64, .temperature = 0.7, .top_p = 0.9, .top_k = 40, .seed = 18446744073709551615ull};
  request.sampling.stop = {"\n\n", "é", std::string(300, 'x')};
  request.sampling.stop_token_ids = {2, 3};
  request.sampling.frequency_penalty = 0.5;
  request.sampling.presence_penalty = -2;
  request.sampling.repetition_penalty = 1.25;
  request.sampling.min_tokens = 3;
  request.sampling.logit_bias = {{5, -100}, {151642, 0.5}};
  request.sampling.stop_regex = {"a+b"};
  request.sampling.top_logprobs = 2;
  request.sampling.logprob_token_ids = {4};
  request.extra_key = "tenant";
  request.priority = -3;
  request.timeout_ms = 1500;
  return request;
}

std::vector<TokenLogprobs> sample_logprobs() {
  return {{.token = 7, .logprob = -0.5, .top_ids = {7, 8}, .top = {-0.5, -1.25}}, {.token = 8, .of_ids = {-3.5}}};
}

TextBatch sample_text() { return {{TextDelta{.id = ReqId{1}, .accepted = true, .text = "zażółć", .tokens = {9}}}}; }

StageStatus sample_status() {
  return {.stage = "scheduler",
          .incarnation = 3,
          .state = StageState::kReady,
          .progress = 0.5,
          .steps = 9,
          .weight_version = 1,
          .metrics = {{"num_retractions_total", 4}},
          .replica = 2,
          .peers_epoch = 70'000};
}

AdminRequest sample_order() {
  return {.id = 3, .action = AdminAction::kStartProfile, .argument = "/tmp/x", .timeout_ms = 2500};
}

AdminReply sample_reply() { return {.id = 3, .stage = "scheduler", .message = "done"}; }

TokenBatch sample_batch() {
  TokenBatch batch;
  batch.source = 4294967295u;
  for (int i = 0; i < 40; ++i) {
    TokenDelta delta{.id = ReqId{static_cast<uint64_t>(i)}};
    if (i % 2) delta.start = DetokenizeStart{.stop = {"stop"}};
    if (i % 3 == 0) delta.tokens = {i, i + 1};
    if (i % 5 == 0) delta.finish = Finish{.reason = FinishReason::kStop, .matched_token = 7};
    delta.usage = {.prompt_tokens = i, .completion_tokens = 2, .cached_tokens = 1};
    if (i == 9) delta.logprobs = sample_logprobs();
    if (i == 1) delta.prompt_logprobs = sample_logprobs();
    delta.weight_version = 2;
    batch.deltas.push_back(delta);
  }
  return batch;
}

std::vector<Message> all_kinds() {
  return {sample_request(), AbortRequest{ReqId{7}}, sample_batch(), sample_text(),
          sample_status(),  sample_order(),         sample_reply()};
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
  auto back = decode(bytes_of(sample_request()));
  const auto& request = std::get<TokenizedRequest>(*back);
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
      std::string mutated = frame;
      for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
        mutated[random() % mutated.size()] = static_cast<char>(random());
      }
      auto back = decode(mutated);
      // What decodes must be a message: it encodes again, and no larger than the frame plus its shortest-form savings.
      if (back.ok()) {
        EXPECT_LE(bytes_of(*back).size(), mutated.size());
      }
    }
  }
}

TEST(Codec, RefusalsSayWhatWasSeenAndWanted) {
  auto expect_message = [](std::string frame, std::string_view part) {
    auto back = decode(frame);
    ASSERT_FALSE(back.ok());
    EXPECT_NE(back.status().message().find(part), std::string::npos) << back.status().message();
  };
  std::string frame = bytes_of(AbortRequest{ReqId{7}});
  std::string wrong_version = frame;
  wrong_version[2] = 9;
  expect_message(wrong_version, fmt::format("wire version 9; wanted {}", kWireVersion));
  std::string wrong_type = frame;
  wrong_type[4] = 77;
  expect_message(wrong_type, "message type 77 is unknown");
  std::string unknown_field = frame;
  unknown_field[7] = 33;
  expect_message(unknown_field, "field 33 is unknown");
  // A batch without deltas from a replica that has no number of 32 bits.
  expect_message(std::string("\x83\x00\x07\x01\x02\x02\x82\x01\x90\x02\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 19),
                 "4294967296 is out of range");
  // An array that declares 4 billion deltas in a ten-byte frame.
  expect_message(std::string("\x83\x00\x07\x01\x02\x02\x81\x01\xdd\xff\xff\xff\xff", 13), "wanted at most 4096");
  expect_message(std::string("\x83\x00\x07\x01\x02\x02\x81\x01\xdd\x00\x00\x0f\xff", 13), "bytes are left");
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
  EXPECT_TRUE(decode(bytes_of(request)).ok());
  request.prompt.push_back(1);
  refused(request, "2: 4194305 token ids; wanted at most 4194304");
  request = sample_request();
  request.sampling.stop.assign(kMaxStopStrings, std::string(kMaxStopStringBytes, 's'));
  EXPECT_TRUE(decode(bytes_of(request)).ok());
  request.sampling.stop.push_back("s");
  refused(request, "3: 7: 17 elements; wanted at most 16");
  request.sampling.stop = {std::string(kMaxStopStringBytes + 1, 's')};
  refused(request, "3: 7: 1025 bytes of text; wanted at most 1024");
  TextBatch batch;
  batch.deltas.resize(kMaxBatchEntries);
  EXPECT_TRUE(decode(bytes_of(batch)).ok());
  batch.deltas.emplace_back();
  refused(batch, "1: 4097 elements; wanted at most 4096");
  batch.deltas = {TextDelta{.text = std::string(kMaxTextBytes + 1, 't')}};
  refused(batch, "bytes of text; wanted at most 16777216");
}

// tests/oracles/wire_frames.py writes the same messages with python3-msgpack.
TEST(Codec, FramesEqualTheOraclesBytes) {
  const std::string folder = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/wire/";
  const std::vector<std::pair<std::string, Message>> cases = {
      {"tokenized_request", sample_request()}, {"abort_request", AbortRequest{ReqId{7}}},
      {"token_batch", sample_batch()},         {"text_batch", sample_text()},
      {"stage_status", sample_status()},       {"admin_request", sample_order()},
      {"admin_reply", sample_reply()},
  };
  for (const auto& [name, message] : cases) {
    std::ifstream file(folder + name + ".msgpack", std::ios::binary);
    ASSERT_TRUE(file) << folder << name;
    const std::string golden((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(bytes_of(message), golden) << name;
  }
}

}  // namespace
}  // namespace millrace::wire
