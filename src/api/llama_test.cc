// What llama.cpp's clients get for what the engine reports, over real sockets. Shapes are those of its server's README.
#include <gtest/gtest.h>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kCompletion[] = "/completion";

class LlamaTest : public ApiHarness {
 protected:
  // The last members of an answer, without times.
  static Json shown(Json answer) {
    Json& timings = answer["timings"];
    for (const char* key : {"prompt", "predicted"}) {
      for (const char* unit : {"_ms", "_per_token_ms", "_per_second"}) {
        EXPECT_GE(timings[std::string(key) + unit].get<double>(), 0);
        timings.erase(std::string(key) + unit);
      }
    }
    answer.erase("generation_settings");
    return answer;
  }
  std::string refused(const std::string& members) {
    const Answer answer = post(kCompletion, R"({"prompt":"a",)" + members + "}").get();
    EXPECT_EQ(answer.status, 400) << members;
    return answer.json()["error"]["message"];
  }
};

TEST_F(LlamaTest, Complete) {
  auto answer = post(kCompletion, R"({"prompt":"a","n_predict":7,"seed":3,"repeat_penalty":1.5,"top_k":2,)"
                                  R"("logit_bias":[[5,1.5],[7,false]],"stop":["X"],"return_tokens":true})");
  wait_submitted(1);
  const GenerateRequest request = engine_.request(0);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.seed, 3U);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<wire::LogitBias>{{5, 1.5}, {7, -100}}));
  engine_.accept(0);
  engine_.token(0, 7, "Hel", {5, 1, 2}, 0);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_text = "X"}, 2, "lo");
  const Json body = answer.get().json();
  EXPECT_EQ(shown(body),
            parsed(R"({"index":0,"content":"Hello","tokens":[7],"id_slot":-1,"stop":true,"tokens_predicted":2,)"
                   R"("tokens_evaluated":5,"model":"demo","truncated":false,"stop_type":"word",)"
                   R"("stopping_word":"X","tokens_cached":2,)"
                   R"("timings":{"cache_n":2,"prompt_n":3,"predicted_n":2}})"));
  EXPECT_EQ(body["generation_settings"]["n_predict"], 7);
  EXPECT_EQ(body["generation_settings"]["n_ctx"], 64);
}

TEST_F(LlamaTest, Streamed) {
  auto answer = post(kCompletion, R"({"prompt":"a","n_predict":-1,"stream":true,"n_probs":1})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, std::nullopt);
  EXPECT_EQ(engine_.request(0).sampling.top_logprobs, 1);
  engine_.accept(0);
  engine_.token(0, 7, "t7", {5, 1, 2}, -0.5, {{8, -0.25}});
  engine_.end(0, {.reason = FinishReason::kStop, .matched_token = 3}, 2);
  const Answer got = answer.get();
  ASSERT_EQ(got.events.size(), 2U) << "and no [DONE]";
  EXPECT_EQ(parsed(got.events[0]),
            parsed(R"({"index":0,"content":"t7","tokens":[7],"id_slot":-1,"stop":false,"tokens_predicted":1,)"
                   R"("tokens_evaluated":5,"completion_probabilities":[{"id":7,"token":"t7","bytes":[116,55],)"
                   R"("logprob":-0.5,"top_logprobs":[{"id":8,"token":"t8","bytes":[116,56],"logprob":-0.25}]}]})"));
  const Json last = parsed(got.events[1]);
  EXPECT_EQ(last["stop_type"], "eos");
  EXPECT_EQ(last["tokens"], Json::array()) << "an end token is no token of the text";
  EXPECT_EQ(last["stop"], true);
}

TEST_F(LlamaTest, SeveralPromptsHaveSeveralAnswers) {
  auto answer = post(kCompletion, R"({"prompt":["a",[5,6]],"n_predict":1})");
  wait_submitted(2);
  EXPECT_EQ(std::get<TokenPrompt>(*engine_.request(1).prompt).ids, (std::vector<int32_t>{5, 6}));
  engine_.accept(0);
  engine_.accept(1);
  engine_.end(1, {.reason = FinishReason::kLength}, 1, "two");
  engine_.end(0, {.reason = FinishReason::kLength}, 1, "one");
  const Json body = answer.get().json();
  ASSERT_EQ(body.size(), 2U);
  EXPECT_EQ(body[0]["content"], "one");
  EXPECT_EQ(body[1]["content"], "two");
  EXPECT_EQ(body[1]["stop_type"], "limit");
}

TEST_F(LlamaTest, WhatIsNotServedIsRefused) {
  for (const auto& [members, wanted] :
       {std::pair(R"("mirostat":2)", "mirostat is not supported; wanted 0 or nothing"),
        {R"("samplers":["top_k"])", "samplers is not supported; leave it out"},
        {R"("n_cmpl":2)", "n_cmpl is not supported; wanted 1 or nothing"},
        {R"("n":2)", "n is not supported; wanted 1 or nothing"},
        {R"("repeat_penalty":1.1,"repeat_last_n":64)", "repeat_last_n is not supported; wanted -1 or nothing"},
        {R"("repeat_penalty":9)", "repeat_penalty is 9; wanted a number in (0, 2]"},
        {R"("n_predict":-2)", "n_predict is -2; wanted an integer in [0, 2147483647]"},
        {R"("n_probs":21)", "n_probs is 21; wanted an integer in [0, 20]"},
        {R"("logit_bias":[["Hello",1]])", "logit_bias[0] is [\"Hello\",1]; wanted a token id and a number or false"},
        {R"("response_fields":["content"])", "response_fields is not supported; wanted [] or nothing"},
        {R"("lora":[{"id":0}])", "lora is not supported; wanted [] or nothing"}}) {
    EXPECT_EQ(refused(members), wanted);
  }
  EXPECT_EQ(post(kCompletion, "{}").get().status, 400);
}

TEST_F(LlamaTest, TokensWithTheirText) {
  engine_.bytes = {{1, "a"}, {2, "\xC3"}};
  const auto tokens = [this](const std::string& body) { return post("/tokenize", body).get().json()["tokens"]; };
  EXPECT_EQ(tokens(R"({"content":"a"})"), parsed("[1,2]"));
  EXPECT_EQ(tokens(R"({"content":"a","with_pieces":true,"add_special":true,"parse_special":true})"),
            parsed(R"([{"id":1,"piece":"a"},{"id":2,"piece":[195]}])"));
  EXPECT_EQ(post("/tokenize", R"({"content":"a","parse_special":false})").get().status, 400);
  EXPECT_EQ(post("/tokenize", R"({"content":"a","prompt":"b"})").get().json()["error"]["message"],
            "several of prompt, messages and content are given; wanted exactly one of them");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[1,2]})").get().json(),
            parsed(R"({"text":"text","content":"text","prompt":"text"})"));
}

TEST_F(LlamaTest, TheTemplateIsAppliedAndShown) {
  engine_.facts.chat_template = "{{ messages }}";
  engine_.facts.temperature = 0.6;
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}])";
  EXPECT_EQ(post("/apply-template", messages + "}").get().json(), parsed(R"({"prompt":"text"})"));
  EXPECT_EQ(post("/apply-template", messages + R"(,"chat_template":"x"})").get().status, 400);
  EXPECT_EQ(post("/apply-template", R"({"messages":1})").get().status, 400);
  const Json props = get("/props").json();
  EXPECT_EQ(props["chat_template"], "{{ messages }}");
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 64);
  EXPECT_EQ(props["default_generation_settings"]["params"]["temperature"], 0.6);
  EXPECT_EQ(props["default_generation_settings"]["params"]["n_predict"], -1);
  EXPECT_EQ(props["modalities"], parsed(R"({"vision":false,"audio":false})"));
}

}  // namespace
}  // namespace millrace::api::testing
