// TextEngine over a pipeline that a test plays: what it asks for, and what its answer gets.
#include "stages/text_engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace millrace {
namespace {

// Keeps what came.
struct ReceivedAnswer : TextAnswer {
  void on_text(const wire::TextDelta& delta) override { deltas.push_back(delta); }
  SinkAnswer on_audio(std::span<const float> more) override {
    samples.insert(samples.end(), more.begin(), more.end());
    return SinkAnswer::kTaken;
  }
  std::vector<wire::TextDelta> deltas;
  std::vector<float> samples;
};

// Keeps what was asked; the test emits the events.
class ManualPipeline : public PipelineEngine {
 public:
  struct Begun {
    ReqId id;
    Result<wire::TokenizedRequest> request = wire::TokenizedRequest();
    PlacementHint hint;
  };
  static void end(const Sink& sink, ReqId id, const Status& status) {
    RequestEvent event{.id = id, .body = RequestEvent::End{.status = status}};
    sink(event);
  }
  ReqId submit(PipelineRequest request, Sink sink) override {
    std::lock_guard lock(mutex_);
    const ReqId id{++last_};
    requests.push_back(request);
    if (!refusal.ok()) {
      end(sink, id, refusal);
    } else {
      sinks[id.value] = std::move(sink);
    }
    return id;
  }
  // As a coordinator does: a prompt that could not be made ends its request.
  void set_prompt(ReqId id, Result<wire::TokenizedRequest> request, PlacementHint hint) override {
    std::lock_guard lock(mutex_);
    if (!request.ok() && sinks.contains(id.value)) {
      const Sink sink = std::move(sinks[id.value]);
      sinks.erase(id.value);
      end(sink, id, request.status());
    }
    begun.push_back({id, std::move(request), std::move(hint)});
    changed_.notify_all();
  }
  bool is_live(ReqId id) const override {
    std::lock_guard lock(mutex_);
    return sinks.contains(id.value);
  }
  void abort(ReqId id) override {
    std::lock_guard lock(mutex_);
    aborted.push_back(id.value);
    sinks.erase(id.value);
  }
  void cancel(ReqId id) override { cancelled.push_back(id.value); }
  void admin(wire::AdminAction, int64_t timeout_ms, std::function<void(std::vector<wire::AdminReply>)> done) override {
    done({{.stage = "scheduler", .message = std::to_string(timeout_ms)}});
  }
  Health health() const override { return state; }
  int64_t request_timeout_s() const override { return 600; }
  const std::string& name() const override { return text_; }
  const std::string& picture() const override { return text_; }

  Begun wait_begun(std::size_t nth = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(120), [&] { return begun.size() > nth; }));
    return begun.size() > nth ? begun[nth] : Begun{};
  }
  void emit(ReqId id, wire::TextDelta delta) {
    const Sink sink = sinks.at(id.value);
    delta.id = id;
    RequestEvent event{.id = id, .stage = "detokenizer", .body = std::move(delta)};
    EXPECT_EQ(sink(event), SinkAnswer::kTaken);
  }
  void finish(ReqId id, const Status& status) { end(sinks.at(id.value), id, status); }

  Status refusal;
  Health state;
  std::vector<PipelineRequest> requests;
  std::map<uint64_t, Sink> sinks;
  std::vector<Begun> begun;
  std::vector<uint64_t> aborted, cancelled;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t last_ = 0;
  std::string text_;
};

class TextEngineTest : public ::testing::Test {
 protected:
  TextEngineTest()
      : text_(Tokenizer::load(MILLRACE_SOURCE_DIR "/models/demo").value()),
        tokenizer_(text_, std::nullopt, 1000),
        engine_({.queue_timeout_ms = 500, .replicas = 2, .wants_prefix = true}, facts(), tokenizer_, pipeline_),
        thread_([this] { tokenizer_.run(); }) {}
  ~TextEngineTest() override {
    tokenizer_.close();
    tokenizer_.request_stop();
    thread_.join();
  }
  ModelFacts facts() const {
    ModelFacts out;
    out.context_length = 100;
    out.vocab_size = 3000;
    return out;
  }
  ReqId submit(const std::string& prompt, std::optional<int32_t> max_tokens = 8) {
    GenerateRequest request{.prompt = Prompt(TextPrompt{prompt, false}), .max_tokens = max_tokens};
    request.extra_key = "salt";
    request.replica = replica_;
    received_ = std::make_shared<ReceivedAnswer>();
    return engine_.submit(std::move(request), received_);
  }
  const wire::Finish& finish() {
    static const wire::Finish none;
    EXPECT_FALSE(received_->deltas.empty());
    const bool has = !received_->deltas.empty() && received_->deltas.back().finish;
    EXPECT_TRUE(has);
    return has ? *received_->deltas.back().finish : none;
  }

  std::shared_ptr<const Tokenizer> text_;
  ManualPipeline pipeline_;
  TokenizerStage tokenizer_;
  TextEngine engine_;
  std::optional<int32_t> replica_;
  std::shared_ptr<ReceivedAnswer> received_;  // of the last request
  std::thread thread_;
};

TEST_F(TextEngineTest, APromptIsAcceptedThenTokenizedThenPlaced) {
  const std::string prompt(60, 'x');
  const ReqId id = submit(prompt);
  EXPECT_TRUE(pipeline_.requests[0].options.inputs_follow);
  const auto begun = pipeline_.wait_begun();
  ASSERT_TRUE(begun.request.ok()) << begun.request.status().to_string();
  EXPECT_EQ(begun.id, id);
  const auto ids = text_->encode(prompt, {.add_special_tokens = false}).value();
  EXPECT_EQ(begun.request->prompt, ids);
  EXPECT_EQ(begun.request->sampling.max_tokens, 8);
  EXPECT_EQ(begun.request->queue_timeout_ms, 500);
  EXPECT_EQ(begun.hint.tokens, static_cast<int64_t>(ids.size()));
  EXPECT_EQ(begun.hint.prefix, ReplicaRouter::prefix_of(ids, "salt"));
}

TEST_F(TextEngineTest, TheFinishIsTheEndWhateverTheEndReports) {
  const ReqId id = submit("Once upon a time");
  pipeline_.wait_begun();
  pipeline_.emit(id, {.accepted = true});
  pipeline_.emit(id, {.text = " there", .tokens = {5}});
  pipeline_.emit(id, {.finish = wire::Finish{.reason = wire::FinishReason::kLength}});
  pipeline_.finish(id, error(StatusCode::kUnavailable, "too late to matter"));
  ASSERT_EQ(received_->deltas.size(), 3u);
  EXPECT_EQ(received_->deltas[1].text, " there");
  EXPECT_EQ(finish().reason, wire::FinishReason::kLength);
}

TEST_F(TextEngineTest, AnEndWithoutAFinishIsAnError) {
  struct Case {
    Status status;
    wire::FinishReason reason;
    StatusCode code;
  };
  const Case cases[] = {
      {error(StatusCode::kUnavailable, "scheduler stopped"), wire::FinishReason::kError, StatusCode::kUnavailable},
      {error(StatusCode::kCancelled, "aborted"), wire::FinishReason::kAborted, StatusCode::kOk},
      {ok_status(), wire::FinishReason::kError, StatusCode::kInternal}};
  std::size_t nth = 0;
  for (const Case& each : cases) {
    const ReqId id = submit("Once");
    pipeline_.wait_begun(nth++);
    pipeline_.finish(id, each.status);
    EXPECT_EQ(finish().reason, each.reason);
    EXPECT_EQ(finish().code, each.code);
  }
}

TEST_F(TextEngineTest, MaxTokensIsBoundedByTheContext) {
  submit("Once", 1000);
  const auto begun = pipeline_.wait_begun(0);
  ASSERT_TRUE(begun.request.ok());
  EXPECT_EQ(begun.request->sampling.max_tokens, 100 - static_cast<int32_t>(begun.request->prompt.size()));
}

TEST_F(TextEngineTest, WhatCannotBeServedEndsWithItsReason) {
  submit(std::string(2000, 'x'));
  EXPECT_EQ(pipeline_.wait_begun(0).request.status().code(), StatusCode::kTooLarge);
  replica_ = 2;
  submit("Once");
  const auto begun = pipeline_.wait_begun(1);
  EXPECT_EQ(begun.request.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(begun.request.status().message().find("rank is 2; wanted 0 to 1"), std::string::npos);
  EXPECT_EQ(finish().code, StatusCode::kInvalidArgument);
  replica_ = 1;
  submit("Once");
  EXPECT_EQ(pipeline_.wait_begun(2).hint.replica, 1);
  pipeline_.refusal = error(StatusCode::kResourceExhausted, "4096 requests are live");
  submit("Once");
  EXPECT_EQ(finish().code, StatusCode::kResourceExhausted);
}

TEST_F(TextEngineTest, AnIdOutsideTheVocabularyFailsItsRequestAndStopsIt) {
  const ReqId id = submit("Once");
  pipeline_.wait_begun();
  const auto sink = pipeline_.sinks.at(id.value);
  RequestEvent strange{.id = id, .body = wire::TextDelta{.tokens = {7, 3000}}};
  RequestEvent more{.id = id, .body = wire::TextDelta{.text = "more"}};
  sink(strange);
  EXPECT_EQ(finish().code, StatusCode::kInternal);
  EXPECT_NE(finish().message.find("token id 3000; wanted 0 to 2999"), std::string::npos);
  EXPECT_EQ(pipeline_.aborted, std::vector<uint64_t>{id.value});
  sink(more);
  EXPECT_EQ(received_->deltas.size(), 1u);
}

TEST_F(TextEngineTest, AbortsAndCommandsGoToThePipeline) {
  engine_.abort({4});
  engine_.cancel({5});
  EXPECT_EQ(pipeline_.aborted, std::vector<uint64_t>{4});
  EXPECT_EQ(pipeline_.cancelled, std::vector<uint64_t>{5});
  std::string message;
  engine_.admin(wire::AdminAction::kFlushCache, 77, [&](auto replies) { message = replies.at(0).message; });
  EXPECT_EQ(message, "77");
  pipeline_.state.stages = {{.stage = "scheduler"}, {.stage = "scheduler", .replica = 1}, {.stage = "detokenizer"}};
  const Health health = engine_.health();
  EXPECT_EQ(health.stages[0].stage, "scheduler-0");
  EXPECT_EQ(health.stages[1].stage, "scheduler-1");
  EXPECT_EQ(health.stages[2].stage, "detokenizer");
}

// The last text comes at once, the finish behind all samples.
TEST_F(TextEngineTest, TheFinishOfASpokenAnswerWaitsForItsSound) {
  TextEngine engine({.terminal = "detokenizer", .speech_terminal = "vocoder"}, facts(), tokenizer_, pipeline_);
  auto received = std::make_shared<ReceivedAnswer>();
  const std::vector<wire::TextDelta>& deltas = received->deltas;
  const auto submit = [&] {
    GenerateRequest request{.prompt = Prompt(TokenPrompt{{1, 2}}), .max_tokens = 8};
    request.speech = wire::SpeechRequest{.voice = "ethan"};
    return engine.submit(std::move(request), received);
  };
  const auto play = [&](ReqId id, const std::vector<float>& samples) {
    Buffer bytes(samples.size() * sizeof(float));
    std::copy(samples.begin(), samples.end(), bytes.as<float>().begin());
    Value value;
    value.set("samples", SharedTensor{.dtype = DType::kF32,
                                      .shape = {static_cast<int64_t>(samples.size())},
                                      .bytes = SharedBytes(std::move(bytes))});
    RequestEvent event{
        .id = id, .stage = "vocoder", .body = RequestEvent::ValueChunk{.modality = "audio", .value = std::move(value)}};
    EXPECT_EQ(pipeline_.sinks.at(id.value)(event), SinkAnswer::kTaken);
  };
  const ReqId id = submit();
  EXPECT_EQ(pipeline_.requests[0].options.terminals, (std::vector<std::string>{"detokenizer", "vocoder"}));
  pipeline_.emit(id, {.accepted = true});
  play(id, {0.5f});
  pipeline_.emit(id, {.text = "all", .finish = wire::Finish{.reason = wire::FinishReason::kLength}, .usage = {2, 3}});
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[1].text, "all");
  EXPECT_FALSE(deltas[1].finish.has_value());
  play(id, {0.25f, -1});
  pipeline_.finish(id, ok_status());
  ASSERT_EQ(deltas.size(), 3u);
  EXPECT_EQ(deltas[2].text, "") << "the text comes once";
  EXPECT_EQ(deltas[2].finish->reason, wire::FinishReason::kLength);
  EXPECT_EQ(deltas[2].usage.completion_tokens, 3);
  EXPECT_EQ(received->samples, (std::vector<float>{0.5f, 0.25f, -1}));

  received = std::make_shared<ReceivedAnswer>();
  const ReqId failed = submit();
  pipeline_.emit(failed, {.text = "all", .finish = wire::Finish{.reason = wire::FinishReason::kStop}});
  pipeline_.finish(failed, Status(StatusCode::kUnavailable, "the vocoder stopped"));
  EXPECT_EQ(received->deltas.back().finish->reason, wire::FinishReason::kError);
  EXPECT_EQ(received->deltas.back().finish->message, "the vocoder stopped");
  pipeline_.wait_begun(1);  // the tokenizer is done with both
}

}  // namespace
}  // namespace millrace
