// What the talker's stage gets: the beginning once, and rows of media before the first token.
#include "stages/generating/speech_inputs.h"

#include <gtest/gtest.h>

#include "stages/testing/recorded_emit.h"

namespace millrace {
namespace {

wire::TokenizedRequest request_of(uint64_t id, bool picture = true) {
  wire::TokenizedRequest request{.id = ReqId{id}, .prompt = {1, 2, 2, 3}};
  request.speech = wire::SpeechRequest{.voice = "ethan"};
  if (picture) {
    request.media = {{.begin = 1, .rows = 2, .grid_t = 1, .grid_h = 2, .grid_w = 4, .field = "messages[0].content[0]"}};
    request.media[0].bytes.bytes = "the file";
  }
  return request;
}

PromptInput input() {
  PromptInput out;
  out.spans.push_back({1, "digest", {.rows = 2}});
  return out;
}

wire::TokenDelta delta(uint64_t id, std::vector<int32_t> tokens, std::optional<wire::FinishReason> finish = {}) {
  wire::TokenDelta out{.id = ReqId{id}, .tokens = std::move(tokens)};
  if (finish) out.finish = wire::Finish{.reason = *finish};
  out.weight_version = 1;
  return out;
}

TEST(SpeechInputs, RowsOfMediaGoToTheTalkerBeforeTheFirstToken) {
  SpeechInputs inputs({.stage = "talker", .layer = 2, .hidden_size = 3});
  const auto request = request_of(1);
  ASSERT_TRUE(inputs.begin(request).ok());
  const PromptInput media = input();
  const auto capture = inputs.capture(request, &media, 1);
  ASSERT_NE(capture, nullptr);
  for (std::size_t i = 0; i < 6; ++i) (*capture->spans[0].values)[i] = static_cast<float>(i);
  const auto start = inputs.take_start(ReqId{1});
  ASSERT_TRUE(start);
  EXPECT_EQ(start->prompt, request.prompt);
  ASSERT_EQ(start->media.size(), 1u);
  EXPECT_EQ(start->media[0].grid_w, 4);
  EXPECT_TRUE(start->media[0].bytes.bytes.empty()) << "files stay here";
  EXPECT_FALSE(inputs.take_start(ReqId{1}));
  testing::RecordedEmit emit;
  inputs.on_delta(delta(1, {}), emit);
  EXPECT_TRUE(emit.of[1].chunks.empty()) << "the prompt is not computed";
  inputs.on_delta(delta(1, {7}), emit);
  inputs.on_delta(delta(1, {8}), emit);
  ASSERT_EQ(emit.of[1].chunks.size(), 1u);
  EXPECT_EQ(emit.of[1].addresses[0].first, "talker");
  const auto* rows = emit.of[1].chunks[0].find(kMediaRowsKey)->get<SharedTensor>();
  EXPECT_EQ(rows->shape, (Shape{2, 3}));
  EXPECT_EQ(rows->view().as<float>()[5], 5);
}

TEST(SpeechInputs, AnEndThatIsNoAbortBringsThemToo) {
  for (const auto reason : {wire::FinishReason::kStop, wire::FinishReason::kLength, wire::FinishReason::kAborted}) {
    SpeechInputs inputs({.stage = "talker", .layer = 2, .hidden_size = 3});
    const auto request = request_of(1);
    ASSERT_TRUE(inputs.begin(request).ok());
    const PromptInput media = input();
    inputs.capture(request, &media, 1);
    testing::RecordedEmit emit;
    inputs.on_delta(delta(1, {}, reason), emit);
    EXPECT_EQ(emit.of[1].chunks.size(), reason == wire::FinishReason::kAborted ? 0u : 1u);
  }
}

TEST(SpeechInputs, TextAloneAndDroppedRequestsHaveNoRows) {
  SpeechInputs inputs({.stage = "talker", .layer = 2, .hidden_size = 3});
  const auto text = request_of(1, false), dropped = request_of(2);
  ASSERT_TRUE(inputs.begin(text).ok() && inputs.begin(dropped).ok());
  EXPECT_EQ(inputs.capture(text, nullptr, 1), nullptr);
  const PromptInput media = input();
  EXPECT_NE(inputs.capture(dropped, &media, 1), nullptr);
  inputs.drop(ReqId{2});
  EXPECT_EQ(inputs.capture(request_of(3), &media, 1), nullptr) << "it is not spoken";
  testing::RecordedEmit emit;
  for (const uint64_t id : {1, 2, 3}) inputs.on_delta(delta(id, {7}), emit);
  for (const uint64_t id : {1, 2, 3}) EXPECT_TRUE(emit.of[id].chunks.empty()) << id;
}

TEST(SpeechInputs, RowsOfWeightsWhoseNumberComesAgainAreComputed) {
  SpeechInputs inputs({.stage = "talker", .layer = 2, .hidden_size = 3});
  uint64_t id = 0;
  testing::RecordedEmit emit;
  const auto known = [&] {  // of another request with the same picture, under the version 1
    const auto request = request_of(++id);
    EXPECT_TRUE(inputs.begin(request).ok());
    const PromptInput media = input();
    const auto capture = inputs.capture(request, &media, 1);
    inputs.on_delta(delta(id, {7}), emit);
    return capture->spans[0].known;
  };
  inputs.on_weights(1);
  EXPECT_FALSE(known());
  inputs.on_weights(1);
  EXPECT_TRUE(known());
  inputs.on_weights(2);
  inputs.on_weights(1);
  EXPECT_FALSE(known());
}

TEST(SpeechInputs, RefusalsNameTheField) {
  SpeechInputs silent({});
  EXPECT_EQ(silent.begin(request_of(1)).code(), StatusCode::kUnsupported);
  SpeechInputs text_alone({.stage = "talker", .layer = 0, .hidden_size = 3});
  EXPECT_TRUE(text_alone.begin(request_of(1, false)).ok());
  EXPECT_NE(text_alone.begin(request_of(2)).message().find("messages[0].content[0]"), std::string::npos);
}

}  // namespace
}  // namespace millrace
