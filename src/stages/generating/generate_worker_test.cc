// The worker `generate` without a loop, over the fake runner whose text is a hash of all it was fed; what each request
// must emit comes from that hash alone (scheduler/testing/hash_model.h).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"
#include "stages/testing/generate_worker_testing.h"

namespace millrace {
namespace {

class GenerateWorkerTest : public testing::GenerateWorkerHarness {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  void make(GenerateParts parts = {}) {
    parts.read_request = [this](const Value& payload) -> Result<GenerateRequest> {
      GenerateRequest out;
      const Value* most = payload.find("max_tokens");
      if (most != nullptr) out.max_tokens = static_cast<int32_t>(*most->get<int64_t>());
      if (payload.find("bad") != nullptr) return invalid_argument("bad is there; wanted none");
      out.sampling.temperature = 0;
      out.sampling.stop = stop_;
      return out;
    };
    make_over_fake(std::move(parts));
  }
  Value payload(const std::vector<int32_t>& ids, int64_t max_tokens) {
    Value out;
    out.set("ids", ids_tensor(ids));
    out.set("max_tokens", max_tokens);
    out.set("kept", "as it was");
    return out;
  }
  void start(uint64_t id, const std::vector<int32_t>& ids, int64_t max_tokens) {
    worker_->start({id}, payload(ids, max_tokens), emit_);
  }
  std::vector<int32_t> expected(std::vector<int32_t> all, int64_t max_tokens) const {
    std::vector<int32_t> out;
    while (std::cmp_less(out.size(), max_tokens)) {
      const int32_t token = model_.next(all, 1, 0, 0);
      if (token == model_.eos_token) break;
      all.push_back(token);
      out.push_back(token);
    }
    return out;
  }
  std::vector<int32_t> streamed(uint64_t id) {
    std::vector<int32_t> out;
    for (const wire::TokenDelta& delta : emit_.of[id].tokens) {
      out.insert(out.end(), delta.tokens.begin(), delta.tokens.end());
    }
    return out;
  }
  const Value& result(uint64_t id) {
    static const Value none;
    const auto& emitted = emit_.of[id];
    EXPECT_TRUE(emitted.failures.empty()) << emitted.failures.front().to_string();
    EXPECT_EQ(emitted.results.size(), 1u) << id;
    return emitted.results.size() == 1 ? emitted.results[0] : none;
  }
  void expect_answer(uint64_t id, const std::vector<int32_t>& prompt, int64_t max_tokens) {
    const std::vector<int32_t> wanted = expected(prompt, max_tokens);
    EXPECT_EQ(streamed(id), wanted) << id;
    const Value& emitted = result(id);
    ASSERT_TRUE(emitted.is<ValueMap>());
    EXPECT_EQ(*ids_of(emitted), wanted);
    const bool at_limit = std::cmp_equal(wanted.size(), max_tokens);
    EXPECT_EQ(*emitted.find("finish_reason")->get<std::string>(), at_limit ? "length" : "stop");
    EXPECT_EQ(emitted.find("matched_stop") == nullptr, at_limit);
    EXPECT_EQ(*emitted.find("kept")->get<std::string>(), "as it was");
    EXPECT_EQ(*emitted.find("usage")->find("prompt_tokens")->get<int64_t>(), static_cast<int64_t>(prompt.size()));
  }

  std::vector<std::string> stop_;
};

TEST_F(GenerateWorkerTest, ChunksAndResultsAreTheModelsInAnyBatch) {
  make();
  std::map<uint64_t, std::vector<int32_t>> prompts;
  for (uint64_t id = 1; id <= 12; ++id) {
    std::vector<int32_t> prompt{3, 1, 4, 1, 5, 9, 2, 6};  // a shared beginning
    for (uint64_t i = 0; i < id * 5; ++i) prompt.push_back(static_cast<int32_t>(10 + id + i));
    prompts[id] = prompt;
    start(id, prompt, 60);
    if (id % 3 == 0) worker_->tick(0, emit_), worker_->tick(0, emit_);
  }
  run();
  for (const auto& [id, prompt] : prompts) expect_answer(id, prompt, 60);
  EXPECT_TRUE(runner_->violations().empty());
}

TEST_F(GenerateWorkerTest, WhatCameTogetherIsPlannedTogether) {
  make();
  std::vector<std::size_t> sizes;
  runner_->on_submit = [&](const Batch& batch) { sizes.push_back(batch.sequences.size()); };
  for (uint64_t id = 1; id <= 8; ++id) {
    start(id, {5, 6, static_cast<int32_t>(id)}, 4);
    EXPECT_EQ(worker_->tick(0, emit_), 0);  // as the loop calls it after each event
  }
  EXPECT_TRUE(sizes.empty());
  run();
  ASSERT_FALSE(sizes.empty());
  EXPECT_EQ(sizes.front(), 8u);
}

TEST_F(GenerateWorkerTest, ADroppedRequestFreesItsPagesAndEmitsNothingMore) {
  model_.eos_one_in = 0;
  facts_.page_count = 5;  // 80 tokens: one of these requests fills it
  make();
  start(1, {1, 2, 3}, 76);
  for (int i = 0; i < 60; ++i) worker_->tick(0, emit_);
  EXPECT_GT(streamed(1).size(), 30u);
  worker_->drop({1});
  const std::size_t before = emit_.of[1].tokens.size();
  start(2, {4, 5, 6}, 76);
  run();
  expect_answer(2, {4, 5, 6}, 76);
  EXPECT_EQ(emit_.of[1].tokens.size(), before);
  EXPECT_TRUE(emit_.of[1].results.empty() && emit_.of[1].failures.empty());
  worker_->drop({2});  // as the loop does after a result
  worker_->drop({99});
  start(2, {4, 5, 6}, 10);  // an id may come again
  emit_.of[2] = {};
  run();
  expect_answer(2, {4, 5, 6}, 10);
  EXPECT_TRUE(runner_->violations().empty());
}

TEST_F(GenerateWorkerTest, ASlowReceiverGetsMoreAtOnceAndNoOtherWaits) {
  model_.eos_one_in = 0;
  make();
  start(1, {1, 2, 3}, 40);
  start(2, {4, 5, 6}, 40);
  for (int i = 0; i < 10; ++i) worker_->tick(0, emit_);
  emit_.full = {1};
  const std::size_t before = emit_.of[1].tokens.size();
  for (int i = 0; i < 10; ++i) worker_->tick(0, emit_);
  EXPECT_EQ(emit_.of[1].tokens.size(), before);
  EXPECT_GT(emit_.of[2].tokens.size(), before + 5);
  emit_.full.clear();
  worker_->tick(0, emit_);
  ASSERT_GT(emit_.of[1].tokens.size(), before);
  EXPECT_GT(emit_.of[1].tokens[before].tokens.size(), 5u);
  run();
  expect_answer(1, {1, 2, 3}, 40);
  expect_answer(2, {4, 5, 6}, 40);
}

TEST_F(GenerateWorkerTest, AnEndIsSentEvenToAReceiverThatIsBehind) {
  model_.eos_one_in = 0;
  make();
  emit_.full = {1};
  start(1, {1, 2, 3}, 20);
  run();
  expect_answer(1, {1, 2, 3}, 20);
  EXPECT_EQ(emit_.of[1].tokens.size(), 1u);
  EXPECT_TRUE(emit_.of[1].tokens[0].start && emit_.of[1].tokens[0].finish);
}

TEST_F(GenerateWorkerTest, NoChunksAreEmittedWhereTheStageStreamsToNone) {
  make({.streams = false});
  start(1, {1, 2, 3}, 20);
  run();
  EXPECT_TRUE(emit_.of[1].tokens.empty());
  EXPECT_EQ(*ids_of(result(1)), expected({1, 2, 3}, 20));
}

TEST_F(GenerateWorkerTest, ATokenizedPromptGivesTheSameIdsAndANullResult) {
  make();
  worker_->generate({1}, {.prompt = {1, 2, 3}, .sampling = {.max_tokens = 20, .temperature = 0}}, emit_);
  run();
  EXPECT_EQ(streamed(1), expected({1, 2, 3}, 20));
  EXPECT_TRUE(result(1).is<std::monostate>());
  const wire::TokenDelta& last = emit_.of[1].tokens.back();
  ASSERT_TRUE(last.finish);
  EXPECT_EQ(last.usage.prompt_tokens, 3);
  EXPECT_TRUE(emit_.of[1].tokens.front().start);
  for (const wire::TokenDelta& delta : emit_.of[1].tokens) EXPECT_EQ(delta.id.value, 1u);
}

TEST_F(GenerateWorkerTest, AClientGetsIdsWhereTheStageIsTheTerminal) {
  make({.to_client = true});
  start(1, {1, 2, 3}, 20);
  run();
  std::vector<int32_t> all;
  for (const Value& chunk : emit_.of[1].chunks) {
    const std::vector<int32_t> ids = ids_of(chunk).value();
    all.insert(all.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(all, expected({1, 2, 3}, 20));
  EXPECT_EQ(emit_.of[1].addresses.at(0), std::make_pair(std::string(), std::string("ids")));
  EXPECT_TRUE(emit_.of[1].tokens.empty());
  EXPECT_EQ(*ids_of(result(1)), all);
}

TEST_F(GenerateWorkerTest, ABadRequestFailsAlone) {
  make();
  start(1, {1, 2, 3}, 20);
  struct Case {
    Value payload;
    StatusCode code;
    const char* message;
  };
  const auto with_ids = [](Value ids) {
    Value out;
    out.set("ids", std::move(ids));
    return out;
  };
  Value bad = payload({1}, 4);
  bad.set("bad", true);
  const std::vector<int32_t> too_long(300, 1);
  const Case cases[] = {
      {Value(7), StatusCode::kInvalidArgument, "is a integer"},
      {Value(ValueMap{}), StatusCode::kInvalidArgument, "ids is missing"},
      {with_ids("text"), StatusCode::kInvalidArgument, "ids is a string"},
      {with_ids(ValueList{Value("x")}), StatusCode::kInvalidArgument, "ids[0] is a string"},
      {with_ids(ValueList{Value(int64_t{1} << 40)}), StatusCode::kInvalidArgument, "ids[0] is 1099511627776"},
      {payload({}, 4), StatusCode::kInvalidArgument, "no tokens"},
      {payload({1, 2000}, 4), StatusCode::kInvalidArgument, "prompt token 1 is 2000"},
      {payload({-3}, 4), StatusCode::kInvalidArgument, "prompt token 0 is -3"},
      {payload(too_long, 4), StatusCode::kTooLarge, "the prompt has 300 tokens"},
      {bad, StatusCode::kInvalidArgument, "bad is there"},
  };
  uint64_t id = 10;
  for (const Case& each : cases) {
    worker_->start({++id}, each.payload, emit_);
    const auto& emitted = emit_.of[id];
    ASSERT_EQ(emitted.failures.size(), 1u) << each.message;
    EXPECT_EQ(emitted.failures[0].code(), each.code) << each.message;
    EXPECT_NE(emitted.failures[0].message().find(each.message), std::string::npos) << emitted.failures[0].message();
    EXPECT_TRUE(emitted.results.empty());
  }
  worker_->chunk({50}, "another", Value(1), emit_);
  EXPECT_EQ(emit_.of[50].failures.at(0).code(), StatusCode::kUnsupported);
  Value list = with_ids(ValueList{Value(1), Value(2), Value(3)});  // as JSON writes them
  list.set("max_tokens", 20);
  list.set("kept", "as it was");
  worker_->start({60}, list, emit_);
  run();
  expect_answer(1, {1, 2, 3}, 20);
  expect_answer(60, {1, 2, 3}, 20);
}

TEST_F(GenerateWorkerTest, ItShowsWhatItDoes) {
  model_.eos_one_in = 0;
  make();
  const auto state = [&] {
    worker_->admin({.id = 5, .action = wire::AdminAction::kShowState}, 0, emit_);
    return parse_json(emit_.replies.back().second.value()).value();
  };
  EXPECT_TRUE(state()["requests"].empty());
  start(1, std::vector<int32_t>(40, 7), 4);
  start(2, std::vector<int32_t>(20, 9), 4);
  EXPECT_EQ(state()["requests"][1]["state"], "queued");
  for (int i = 0; i < 4; ++i) worker_->tick(0, emit_);
  const Json busy = state();
  EXPECT_EQ(busy["requests"].size(), 2u);
  EXPECT_EQ(busy["requests"][0]["state"], "decoding");
  EXPECT_EQ(busy["requests"][0]["prompt_tokens"], 40);
  EXPECT_EQ(busy["running"], 2);
  const Json& pages = busy["pages"];
  EXPECT_EQ(pages["free"].get<int>() + pages["cached"].get<int>() + pages["running"].get<int>(),
            pages["total"].get<int>());
  EXPECT_EQ(pages["map"].get<std::string>().size(), pages["total"].get<std::size_t>());
  worker_->drop({1});
  EXPECT_EQ(state()["requests"].size(), 1u);
  run();
  const Json idle = state();
  EXPECT_TRUE(idle["requests"].empty());
  EXPECT_FALSE(idle["steps"].empty());
  EXPECT_FALSE(idle["cache"]["nodes"].empty());
}

TEST_F(GenerateWorkerTest, AFlushWaitsForIdlenessAsLongAsItMay) {
  model_.eos_one_in = 0;
  make();
  std::vector<int32_t> prompt(40, 7);
  start(1, prompt, 4);
  const auto flush = [&](uint64_t command, int64_t timeout_ms) {
    worker_->admin({.id = command, .timeout_ms = timeout_ms}, 0, emit_);
  };
  flush(1, 0);
  flush(2, 1000);
  worker_->tick(0, emit_);
  worker_->tick(1, emit_);
  ASSERT_EQ(emit_.replies.size(), 1u);
  EXPECT_EQ(emit_.replies[0].first, 1u);
  EXPECT_EQ(emit_.replies[0].second.status().code(), StatusCode::kConflict);
  EXPECT_NE(emit_.replies[0].second.status().message().find("1 requests run"), std::string::npos);
  run();
  ASSERT_EQ(emit_.replies.size(), 2u);
  EXPECT_TRUE(emit_.replies[1].second.ok());
  for (uint64_t command = 10; command < 10 + kMaxFlushes; ++command) flush(command, 1000);
  flush(99, 1000);
  EXPECT_EQ(emit_.replies.back().first, 99u);
  EXPECT_EQ(emit_.replies.back().second.status().code(), StatusCode::kResourceExhausted);
  run();
  EXPECT_EQ(emit_.replies.size(), 3u + kMaxFlushes);
  emit_.replies.clear();
  const auto cached = [&](uint64_t id) {
    start(id, prompt, 4);
    run();
    return *result(id).find("usage")->find("cached_tokens")->get<int64_t>();
  };
  EXPECT_EQ(cached(2), 0);
  EXPECT_EQ(cached(3), 32);  // the complete pages of the prompt
  flush(3, 0);
  run();
  ASSERT_EQ(emit_.replies.size(), 1u);
  EXPECT_TRUE(emit_.replies[0].second.ok()) << emit_.replies[0].second.status().to_string();
  EXPECT_EQ(cached(4), 0);
}

TEST_F(GenerateWorkerTest, TheHeartbeatShowsTheEngine) {
  model_.eos_one_in = 0;
  make();
  wire::StageStatus status;
  ASSERT_TRUE(worker_->describe(status));
  EXPECT_EQ(status.pages_total, facts_.page_count);
  EXPECT_EQ(status.pages_free, facts_.page_count);
  start(1, {1, 2, 3}, 20);
  for (int i = 0; i < 4; ++i) worker_->tick(0, emit_);
  ASSERT_TRUE(worker_->describe(status));
  EXPECT_EQ(status.running, 1);
  EXPECT_LT(status.pages_free, facts_.page_count);
  EXPECT_GT(status.steps, 0u);
  EXPECT_FALSE(status.metrics.empty());
}

TEST_F(GenerateWorkerTest, ThePulseMovesWithStepsAndRestsWhenIdle) {
  model_.eos_one_in = 0;
  make();
  EXPECT_FALSE(worker_->pulse()->busy);
  start(1, {1, 2, 3}, 20);
  for (int i = 0; i < 3; ++i) worker_->tick(0, emit_);
  const Pulse first = *worker_->pulse();
  EXPECT_TRUE(first.busy);
  for (int i = 0; i < 3; ++i) worker_->tick(0, emit_);
  EXPECT_GT(worker_->pulse()->progress, first.progress);
  run();
  EXPECT_FALSE(worker_->pulse()->busy);
}

TEST_F(GenerateWorkerTest, AModelThatCannotBeLoadedFailsTheLoad) {
  GenerateParts parts;
  std::vector<std::string> actions;
  parts.load = [](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
    progress("loading weights", 0.5);
    return invalid_argument("no weights");
  };
  const auto worker = make_generate_worker(std::move(parts));
  const Status status = worker->load([&](const std::string& action, double) { actions.push_back(action); });
  EXPECT_EQ(status.message(), "no weights");
  EXPECT_EQ(actions, std::vector<std::string>{"loading weights"});
}

TEST_F(GenerateWorkerTest, AFaultOfOneRowFailsThatRequestAlone) {
  model_.eos_one_in = 0;
  make();
  runner_->fail_row = [](const SequenceStep& step) {
    return step.request.value == 2 && step.position > 8 ? internal_error("NaN") : ok_status();
  };
  start(1, {1, 2, 3}, 20);
  start(2, {4, 5, 6}, 20);
  run();
  expect_answer(1, {1, 2, 3}, 20);
  ASSERT_EQ(emit_.of[2].failures.size(), 1u);
  EXPECT_TRUE(emit_.of[2].results.empty());
}

TEST_F(GenerateWorkerTest, AStopStringEndsARequestAtTheIdThatCompletesIt) {
  const auto tokenizer = Tokenizer::load(MILLRACE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(tokenizer.ok());
  model_.eos_one_in = 0;
  const std::vector<int32_t> prompt{7, 8, 9}, free = expected(prompt, 60);
  // The text of one id in the middle; where it first stands in the complete text decides.
  stop_ = {(*tokenizer)->decode(std::vector<int32_t>(free.begin() + 20, free.begin() + 23), true)};
  ASSERT_FALSE(stop_[0].empty());
  std::size_t count = 0;
  while (count < free.size()) {
    const std::vector<int32_t> part(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(++count));
    if ((*tokenizer)->decode(part, true).find(stop_[0]) != std::string::npos) break;
  }
  ASSERT_LT(count, 60u);
  make({.tokenizer = *tokenizer});
  start(1, prompt, 60);
  run();
  const std::vector<int32_t> wanted(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(count));
  EXPECT_EQ(streamed(1), wanted);
  const Value& emitted = result(1);
  EXPECT_EQ(*emitted.find("finish_reason")->get<std::string>(), "stop");
  EXPECT_EQ(*emitted.find("matched_stop")->get<std::string>(), stop_[0]);
  EXPECT_EQ(*emitted.find("usage")->find("completion_tokens")->get<int64_t>(), static_cast<int64_t>(count));
  ASSERT_TRUE(emit_.of[1].tokens[0].start);
  EXPECT_EQ(emit_.of[1].tokens[0].start->stop, stop_);
  EXPECT_FALSE(emit_.of[1].tokens[1].start);
  EXPECT_EQ(emit_.of[1].tokens.back().finish->matched_text, stop_[0]);
  make();  // without a tokenizer that is an error
  start(2, prompt, 60);
  EXPECT_EQ(emit_.of[2].failures.at(0).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace millrace
