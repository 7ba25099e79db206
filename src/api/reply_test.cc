// What clients get for what the engine emits, over real sockets. Shapes are those of OpenAI's API reference.
#include "api/reply.h"

#include <gtest/gtest.h>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

class ReplyTest : public ApiHarness {};

TEST_F(ReplyTest, ChatComplete) {
  auto answer = post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":7,"seed":3})");
  wait_submitted(1);
  const GenerateRequest request = engine_.request(0);
  EXPECT_TRUE(std::holds_alternative<ChatPrompt>(*request.prompt));
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.seed, 3u);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_token = 9}, 3, "lo \"you\"");
  const Answer got = answer.get();
  EXPECT_EQ(got.status, 200);
  const Json body = got.json();
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_GT(body["created"].get<int64_t>(), 1'600'000'000);
  ASSERT_EQ(body["choices"].size(), 1u);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Hello \"you\"");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["matched_stop"], 9);
  const Json usage = {{"prompt_tokens", 5},
                      {"completion_tokens", 3},
                      {"total_tokens", 8},
                      {"prompt_tokens_details", {{"cached_tokens", 2}}},
                      {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
  EXPECT_EQ(body["usage"], usage);
}

TEST_F(ReplyTest, ChatStreamed) {
  auto answer = post(kChat, R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.text(0, "lo", 2);
  engine_.end(0, {.reason = FinishReason::kLength}, 3);
  const Answer got = answer.get();
  ASSERT_GE(got.events.size(), 4u);
  EXPECT_EQ(got.events.back(), "[DONE]");
  std::string text, id;
  for (std::size_t i = 0; i + 1 < got.events.size(); ++i) {
    const Json chunk = parsed(got.events[i]);
    if (i == 0) id = chunk["id"];
    EXPECT_EQ(chunk["id"], id);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage"));
    ASSERT_EQ(chunk["choices"].size(), 1u);
    const Json& choice = chunk["choices"][0];
    const bool last = i + 2 == got.events.size();
    EXPECT_EQ(choice["finish_reason"], last ? Json("length") : Json());
    EXPECT_EQ(choice["delta"].contains("role"), i == 0);
    if (choice["delta"].contains("content")) text += choice["delta"]["content"].get<std::string>();
    if (last) {
      EXPECT_TRUE(choice["delta"].empty());
    }
  }
  EXPECT_EQ(text, "Hello");
}

TEST_F(ReplyTest, UsageInAStreamAsAsked) {
  for (bool continuous : {false, true}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kChat, std::string(R"({"messages":[{"role":"user","content":"x"}],"stream":true,)") +
                                  R"("stream_options":{"include_usage":true,"continuous_usage_stats":)" +
                                  (continuous ? "true}}" : "false}}"));
    wait_submitted(index + 1);
    engine_.accept(index);
    engine_.text(index, "a", 1);
    engine_.end(index, {}, 2);
    const Answer got = answer.get();
    ASSERT_GE(got.events.size(), 5u);
    for (std::size_t i = 0; i + 2 < got.events.size(); ++i) {
      const Json chunk = parsed(got.events[i]);
      ASSERT_TRUE(chunk.contains("usage"));
      EXPECT_EQ(chunk["usage"].is_null(), !continuous) << got.events[i];
    }
    const Json last = parsed(got.events[got.events.size() - 2]);
    EXPECT_TRUE(last["choices"].is_array() && last["choices"].empty());
    EXPECT_EQ(last["usage"]["completion_tokens"], 2);
    EXPECT_EQ(last["usage"]["total_tokens"], 7);
    EXPECT_EQ(got.events.back(), "[DONE]");
  }
}

TEST_F(ReplyTest, CompletionsCompleteWithTwoPrompts) {
  auto answer = post(kText, R"({"prompt":["one",[1,2,3]],"max_tokens":4})");
  wait_submitted(2);
  EXPECT_EQ(std::get<TextPrompt>(*engine_.request(0).prompt).text, "one");
  EXPECT_EQ(std::get<TokenPrompt>(*engine_.request(1).prompt).ids, (std::vector<int32_t>{1, 2, 3}));
  engine_.accept(1);
  engine_.text(1, "second", 2);
  engine_.accept(0);
  engine_.end(1, {.reason = FinishReason::kLength}, 4);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_text = "x"}, 1, "first");
  const Json body = answer.get().json();
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(body["object"], "text_completion");
  ASSERT_EQ(body["choices"].size(), 2u);
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][0]["text"], "first");
  EXPECT_EQ(body["choices"][0]["matched_stop"], "x");
  EXPECT_EQ(body["choices"][1]["text"], "second");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
}

TEST_F(ReplyTest, CompletionsStreamedInterleaved) {
  auto answer = post(kText, R"({"prompt":["one","two"],"stream":true,"stream_options":{"include_usage":true}})");
  wait_submitted(2);
  EXPECT_EQ(engine_.request(0).max_tokens, 16);  // OpenAI's default here
  engine_.accept(0);
  engine_.text(0, "a1", 1);  // held back: the other one may still be refused
  engine_.accept(1);
  engine_.text(1, "b1", 1);
  engine_.text(0, "a2", 2);
  engine_.end(0, {.reason = FinishReason::kStop}, 2);
  engine_.text(1, "b2", 2);
  engine_.end(1, {.reason = FinishReason::kLength}, 3, "b3");
  const Answer got = answer.get();
  std::string text[2];
  int ends[2] = {};
  ASSERT_GE(got.events.size(), 2u);
  for (std::size_t i = 0; i + 2 < got.events.size(); ++i) {
    const Json choice = parsed(got.events[i])["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    ASSERT_LT(index, 2u);
    EXPECT_EQ(ends[index], 0) << "a choice spoke after its end";
    text[index] += choice["text"].get<std::string>();
    ends[index] += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(text[0], "a1a2");
  EXPECT_EQ(text[1], "b1b2b3");
  EXPECT_EQ(ends[0] + ends[1], 2);
  EXPECT_EQ(parsed(got.events[got.events.size() - 2])["usage"]["completion_tokens"], 5);
}

TEST_F(ReplyTest, AnErrorBeforeTheStreamIsARealStatus) {
  for (bool stream : {false, true}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(
        kChat, std::string(R"({"messages":[{"role":"user","content":"x"}],"stream":)") + (stream ? "true}" : "false}"));
    wait_submitted(index + 1);
    engine_.deliver(index, FakeEngine::error_of(index, Status(StatusCode::kTooLarge, "This model's maximum is 64")));
    const Answer got = answer.get();
    EXPECT_EQ(got.status, 400);
    EXPECT_EQ(got.json()["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(got.json()["error"]["message"], "This model's maximum is 64");
  }
  EXPECT_TRUE(engine_.aborts().empty());
}

TEST_F(ReplyTest, ARefusalFromInsideSubmitAnswersAndStopsTheOthers) {
  engine_.refuse = [](std::size_t index) {
    return index == 1 ? Status(StatusCode::kResourceExhausted, "4096 requests are live") : ok_status();
  };
  const Answer got = post(kText, R"({"prompt":["a","b","c"]})").get();
  EXPECT_EQ(got.status, 429);
  EXPECT_EQ(got.json()["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0}; }));
  EXPECT_EQ(engine_.submitted(), 2u);  // the third was not even tried
}

// It could never be served, so trying again later is no advice.
TEST_F(ReplyTest, MoreThanTheServerRunsAndQueuesIsRefused) {
  engine_.facts.max_requests = 4;
  for (const auto& [path, body] : {std::pair(kText, R"({"prompt":["a","b","c"],"n":2})"),
                                   {kChat, R"({"messages":[{"role":"user","content":"x"}],"n":5})"}}) {
    const Answer got = post(path, body).get();
    EXPECT_EQ(got.status, 400);
    EXPECT_EQ(got.json()["error"]["type"], "invalid_request_error");
  }
  EXPECT_EQ(engine_.submitted(), 0u);
  auto fits = post(kText, R"({"prompt":["a","b"],"n":2})");
  wait_submitted(4);
  for (std::size_t i = 0; i < 4; ++i) engine_.deliver(i, FakeEngine::error_of(i, Status(StatusCode::kTooLarge, "x")));
  fits.get();
}

TEST_F(ReplyTest, AnErrorInsideTheStreamIsAnEventAndNoDone) {
  auto answer = post(kText, R"({"prompt":["a","b"],"stream":true})");
  wait_submitted(2);
  engine_.accept(0);
  engine_.accept(1);
  engine_.text(0, "x", 1);
  engine_.deliver(1, FakeEngine::error_of(1, Status(StatusCode::kUnavailable, "the scheduler stopped")));
  const Answer got = answer.get();
  EXPECT_EQ(got.status, 200);
  ASSERT_EQ(got.events.size(), 2u);
  const Json error = parsed(got.events.back())["error"];
  EXPECT_EQ(error["message"], "the scheduler stopped");
  EXPECT_EQ(error["type"], "overloaded_error");
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0}; }));
  engine_.text(0, "late", 2);  // without effect
}

TEST_F(ReplyTest, AClientThatHangsUpAbortsEveryChoice) {
  auto answer = post(kText, R"({"prompt":["a","b","c"],"stream":true})", 1);
  wait_submitted(3);
  for (std::size_t i : {0u, 1u, 2u}) engine_.accept(i);
  engine_.end(2, {}, 1);
  engine_.text(0, "x", 1);
  answer.get();
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0, 1}; }));
}

TEST_F(ReplyTest, ServerStopAbortsWhatRuns) {
  auto answer = post(kChat, R"({"messages":[{"role":"user","content":"x"}]})");
  wait_submitted(1);
  engine_.accept(0);
  server_->stop();
  EXPECT_EQ(answer.get().status, 0);
  EXPECT_EQ(engine_.aborts(), std::vector<std::size_t>{0});
}

TEST_F(ReplyTest, BadRequestsReachNoEngine) {
  const std::pair<const char*, const char*> cases[] = {
      {kChat, R"({})"},
      {kChat, R"({"messages":[]})"},
      {kChat, R"({"messages":[{"role":"robot","content":"x"}]})"},
      {kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"},
      {kChat, R"({"messages":[{"role":"user"}]})"},
      {kText, R"({"prompt":""})"},
      {kText, R"({"prompt":[]})"},
      {kText, R"({"prompt":[100]})"},
      {kText, R"({"prompt":["a",7]})"},
      {kText, R"({"prompt":"x","temperature":3})"},
      {kText, "not json"},
  };
  for (const auto& [path, body] : cases) {
    const Answer got = post(path, body).get();
    EXPECT_EQ(got.status, 400) << body;
    EXPECT_TRUE(got.json()["error"]["message"].is_string()) << body;
    EXPECT_EQ(got.json()["error"]["type"], "invalid_request_error") << body;
  }
  EXPECT_EQ(post(kText, R"({"model":"other","prompt":"x"})").get().status, 404);
  EXPECT_EQ(engine_.submitted(), 0u);
}

}  // namespace
}  // namespace millrace::api::testing
