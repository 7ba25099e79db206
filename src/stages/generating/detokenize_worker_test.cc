// The workers `tokenize` and `detokenize` without a loop, with the demo model's tokenizer: texts go round.
#include <gtest/gtest.h>

#include "base/testing/test_data.h"
#include "base/utf8.h"
#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"
#include "stages/testing/recorded_emit.h"
#include "text/tools/output_event.h"

namespace millrace {
namespace {

using testing::RecordedEmit;

class DetokenizeWorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(MILLRACE_SOURCE_DIR "/models/demo");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_ = std::move(loaded).value();
    make({.streams = true, .to_client = true});
  }
  void make(const Library::WorkerSlot& slot) { worker_ = make_detokenize_worker(tokenizer_, slot); }
  std::vector<int32_t> ids(const std::string& text) {
    return tokenizer_->encode(text, {.add_special_tokens = false}).value();
  }
  static Value with_ids(const std::vector<int32_t>& ids) {
    Value out;
    out.set("ids", ids_tensor(ids));
    return out;
  }
  static wire::TokenDelta tokens(uint64_t id, const std::vector<int32_t>& ids) {
    return {.id = {id}, .tokens = ids, .weight_version = 1};
  }
  // One id a delta, then the end, then the payload, as a generating stage sends it.
  void stream(uint64_t id, const std::vector<int32_t>& all, Value options = {}) {
    Value first;
    if (options.is<ValueMap>()) first.set("detokenize", options);
    for (std::size_t i = 0; i < all.size(); ++i) {
      wire::TokenDelta delta = tokens(id, {all[i]});
      if (i == 0) delta.start = read_detokenize_options(first).value();
      if (i + 1 == all.size()) delta.finish = wire::Finish{.reason = wire::FinishReason::kLength};
      worker_->tokens({id}, "generate", std::move(delta), emit_);
    }
    worker_->chunks_done({id}, "generate", emit_);
    Value payload = with_ids(all);
    payload.set("finish_reason", "length");
    if (options.is<ValueMap>()) payload.set("detokenize", options);
    worker_->start({id}, std::move(payload), emit_);
  }
  std::string joined(uint64_t id) {
    std::string out;
    for (const Value& chunk : emit_.of[id].chunks) {
      const std::string& text = *chunk.find("text")->get<std::string>();
      EXPECT_FALSE(text.empty());
      out += text;
    }
    for (const wire::TextDelta& delta : emit_.of[id].texts) {
      EXPECT_TRUE(is_utf8(delta.text)) << "a delta holds a part of a character";
      out += delta.text;
    }
    return out;
  }
  std::string text(uint64_t id) {
    const auto& emitted = emit_.of[id];
    EXPECT_TRUE(emitted.failures.empty()) << emitted.failures.front().to_string();
    EXPECT_EQ(emitted.results.size(), 1u);
    return emitted.results.empty() ? "" : *emitted.results[0].find("text")->get<std::string>();
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Worker> worker_;
  RecordedEmit emit_;
};

const char* const kText = "Once upon a time, Zoë saw a 🐶 and 東京 — naïve?";

TEST_F(DetokenizeWorkerTest, AStreamIsCompleteCharactersInSequence) {
  stream(1, ids(kText));
  EXPECT_EQ(joined(1), kText);
  EXPECT_EQ(text(1), kText);
  const auto& deltas = emit_.of[1].texts;
  EXPECT_GT(deltas.size(), 5u);
  EXPECT_TRUE(deltas.front().accepted);
  ASSERT_TRUE(deltas.back().finish);
  std::vector<int32_t> emitted;
  for (const wire::TextDelta& delta : deltas) emitted.insert(emitted.end(), delta.tokens.begin(), delta.tokens.end());
  EXPECT_EQ(emitted, ids(kText));
  const Value& result = emit_.of[1].results[0];
  EXPECT_EQ(*result.find("finish_reason")->get<std::string>(), "length");
  EXPECT_EQ(*ids_of(result), ids(kText));
}

TEST_F(DetokenizeWorkerTest, RequestsDoNotMixAndADroppedOneIsForgotten) {
  const std::vector<int32_t> one = ids("a red ball"), two = ids("東京 blue");
  for (std::size_t i = 0; i < std::max(one.size(), two.size()); ++i) {
    if (i < one.size()) worker_->tokens({1}, "generate", tokens(1, {one[i]}), emit_);
    if (i < two.size()) worker_->tokens({2}, "generate", tokens(2, {two[i]}), emit_);
    worker_->tokens({3}, "generate", tokens(3, {one[0]}), emit_);
  }
  worker_->drop({3});
  for (uint64_t id : {1, 2}) {
    worker_->chunks_done({id}, "generate", emit_);
    worker_->start({id}, with_ids(id == 1 ? one : two), emit_);
  }
  EXPECT_EQ(text(1), "a red ball");
  EXPECT_EQ(text(2), "東京 blue");
  stream(3, two);
  EXPECT_EQ(text(3), "東京 blue");
}

TEST_F(DetokenizeWorkerTest, WithoutAStreamThePayloadIsComplete) {
  worker_->start({1}, with_ids(ids(kText)), emit_);
  EXPECT_EQ(text(1), kText);
  worker_->start({2}, with_ids({}), emit_);
  EXPECT_EQ(text(2), "");
  worker_->chunks_done({3}, "generate", emit_);  // a stream without chunks
  worker_->start({3}, with_ids({}), emit_);
  EXPECT_EQ(text(3), "");
}

TEST_F(DetokenizeWorkerTest, TextEndsBeforeItsStopString) {
  Value options;
  options.set("stop", ValueList{Value("and 東")});
  stream(1, ids(kText), options);
  EXPECT_EQ(text(1), "Once upon a time, Zoë saw a 🐶 ");
  EXPECT_EQ(joined(1), text(1));
  EXPECT_EQ(emit_.of[1].results[0].find("detokenize"), nullptr);
  Value payload = with_ids(ids(kText));
  payload.set("detokenize", options);
  worker_->start({2}, std::move(payload), emit_);
  EXPECT_EQ(text(2), text(1));
}

TEST_F(DetokenizeWorkerTest, ChunksGoWhereTheStageStreams) {
  make({.streams = true});
  stream(1, ids(kText));
  EXPECT_EQ(joined(1), kText);
  for (const auto& address : emit_.of[1].addresses) EXPECT_EQ(address.first, "*");
  make({});
  stream(2, ids(kText));
  EXPECT_TRUE(emit_.of[2].chunks.empty() && emit_.of[2].texts.empty());
  EXPECT_EQ(text(2), kText);
}

TEST_F(DetokenizeWorkerTest, TheDeltasOfATokenizedPromptAreItsOnlyOutput) {
  const std::vector<int32_t> all = ids(kText);
  wire::TokenDelta first = tokens(1, {});
  first.start.emplace();
  first.weight_version = 0;
  worker_->tokens({1}, "generate", first, emit_);
  for (const int32_t id : all) worker_->tokens({1}, "generate", tokens(1, {id}), emit_);
  wire::TokenDelta last = tokens(1, {});
  last.finish = wire::Finish{.reason = wire::FinishReason::kStop, .matched_token = 2};
  last.usage.completion_tokens = 99;
  worker_->tokens({1}, "generate", last, emit_);
  worker_->chunks_done({1}, "generate", emit_);
  worker_->start({1}, Value(), emit_);
  EXPECT_EQ(joined(1), kText);
  EXPECT_EQ(emit_.of[1].texts.back().finish->matched_token, 2);
  EXPECT_EQ(emit_.of[1].texts.back().usage.completion_tokens, 99);
  ASSERT_EQ(emit_.of[1].results.size(), 1u);
  EXPECT_TRUE(emit_.of[1].results[0].is<std::monostate>());
}

TEST_F(DetokenizeWorkerTest, WhatDoesNotFitFailsItsRequest) {
  const std::vector<int32_t> all = ids(kText);
  for (const int32_t id : all) worker_->tokens({1}, "generate", tokens(1, {id}), emit_);
  worker_->chunks_done({1}, "generate", emit_);
  worker_->start({1}, with_ids({all[0]}), emit_);
  EXPECT_EQ(emit_.of[1].failures.at(0).code(), StatusCode::kInternal);
  worker_->chunk({2}, "generate", Value("x"), emit_);
  EXPECT_EQ(emit_.of[2].failures.at(0).code(), StatusCode::kUnsupported);
  worker_->start({4}, Value(), emit_);
  EXPECT_EQ(emit_.of[4].failures.at(0).code(), StatusCode::kInvalidArgument);
  Value wrong = with_ids(all);
  wrong.set("detokenize", Value(7));
  worker_->start({3}, wrong, emit_);
  EXPECT_EQ(emit_.of[3].failures.at(0).code(), StatusCode::kInvalidArgument);
}

TEST_F(DetokenizeWorkerTest, TokenizeReplacesTextByIds) {
  auto tokenize = make_tokenize_worker(PromptEncoder(tokenizer_, std::nullopt, 1000), [](const Value& payload) {
    return Result<Prompt>(TextPrompt{*payload.find("text")->get<std::string>(), false});
  });
  Value payload;
  payload.set("text", kText);
  payload.set("sampling", 7);
  tokenize->start({1}, payload, emit_);
  const Value& result = emit_.of[1].results.at(0);
  EXPECT_EQ(*ids_of(result), ids(kText));
  EXPECT_EQ(result.find("text"), nullptr);
  EXPECT_EQ(*result.find("sampling")->get<int64_t>(), 7);
  payload.set("text", std::string(1001, 'x'));
  tokenize->start({2}, payload, emit_);
  EXPECT_EQ(emit_.of[2].failures.at(0).code(), StatusCode::kTooLarge);
  tokenize->start({3}, Value("x"), emit_);
  EXPECT_EQ(emit_.of[3].failures.at(0).code(), StatusCode::kInvalidArgument);
}

// Of a request whose output is parsed, the client gets events; a marker's token counts as the marker, in any deltas and
// beside stop strings that hold a part of it back.
TEST(DetokenizeParsedTest, EventsDoNotDependOnTheDeltas) {
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/qwen3").string()).value();
  const std::string output =
      "<think>\nIt is ü.\n</think>\n\nWell.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
      "\"é\"}}\n</tool_call>";
  const auto ids = tokenizer->encode(output, {.add_special_tokens = false}).value();
  const auto run = [&](std::size_t size, const wire::DetokenizeStart& start) {
    auto worker = make_detokenize_worker(tokenizer, {.streams = true, .to_client = true});
    RecordedEmit emit;
    for (std::size_t at = 0; at < ids.size(); at += size) {
      const std::size_t end = std::min(at + size, ids.size());
      wire::TokenDelta delta{
          .id = {1},
          .tokens = {ids.begin() + static_cast<std::ptrdiff_t>(at), ids.begin() + static_cast<std::ptrdiff_t>(end)}};
      if (at == 0) delta.start = start;
      if (end == ids.size()) delta.finish = wire::Finish{};
      worker->tokens({1}, "generate", std::move(delta), emit);
    }
    OutputEvents events;
    int32_t reasoning = 0;
    for (const wire::TextDelta& delta : emit.of[1].texts) {
      EXPECT_TRUE(delta.text.empty());
      for (const OutputEvent& event : delta.events) add_event(events, event.kind, event.text);
      reasoning = delta.usage.reasoning_tokens;
    }
    return std::pair(events, reasoning);
  };
  using Kind = OutputEvent::Kind;
  const OutputEvents wanted = {{Kind::kReasoning, "It is ü."},
                               {Kind::kText, "Well."},
                               {Kind::kCallBegin, "f"},
                               {Kind::kArguments, "{\"a\": \"é\"}"},
                               {Kind::kCallEnd, ""}};
  wire::DetokenizeStart start;
  start.parsing = wire::OutputParsing{wire::ToolDialect::kQwen, {"f"}, wire::ReasoningDialect::kThink};
  const auto all = run(ids.size(), start);
  EXPECT_EQ(all.first, wanted);
  EXPECT_EQ(all.second, 7);  // <think>, a line end, "It", " is", " ü", ".\n", </think>
  for (const std::size_t size : {1, 2, 3, 5}) EXPECT_EQ(run(size, start), all) << size;
  start.stop = {"k>\n??", "call>no", ">>>"};
  EXPECT_EQ(run(1, start).first, wanted);
}

}  // namespace
}  // namespace millrace
