// Several choices, best_of, echo and logprobs on the OpenAI endpoints, alone and in pairs, streamed and not.
#include <gtest/gtest.h>

#include "api/choices.h"
#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

// What a client has put together of one choice.
struct Seen {
  std::string text, finish;
  std::vector<std::string> tokens;
  std::vector<int64_t> offsets;
  int ends = 0;
};

class ChoicesTest : public ApiHarness {
 protected:
  // Choice `index` generates " w<index> x" in two tokens, between a prompt of 5 tokens, 2 of them cached (0 for the
  // first).
  void play(std::size_t index, double logprob = -1.0) {
    const int32_t cached = index == 0 ? 0 : 2;
    engine_.accept(index);
    if (engine_.request(index).sampling.prompt_logprobs_from == 0) {
      wire::TextDelta prompt{.id = ReqId{index + 1}, .usage = {5, 0, cached}};
      prompt.prompt_logprobs = {FakeEngine::position(50, std::nullopt), FakeEngine::position(51, -3.0)};
      engine_.deliver(index, prompt);
    }
    engine_.token(index, 10, " w" + std::to_string(index), {5, 1, cached}, logprob, {{10, logprob}});
    engine_.token(index, 11, " x", {5, 2, cached}, logprob, {{12, -0.1}});
    wire::TextDelta last{.id = ReqId{index + 1}, .usage = {5, 2, cached}};
    last.finish = wire::Finish{.reason = FinishReason::kLength};
    engine_.deliver(index, last);
  }
  static void take(Seen& seen, const Json& choice) {
    if (choice.contains("text")) seen.text += choice["text"].get<std::string>();
    for (const char* part : {"delta", "message"}) {
      if (choice.contains(part) && choice[part].contains("content")) {
        seen.text += choice[part]["content"].get<std::string>();
      }
    }
    if (const Json& logprobs = choice["logprobs"]; logprobs.is_object()) {
      if (logprobs.contains("content")) {
        for (const Json& token : logprobs["content"]) seen.tokens.push_back(token["token"]);
      } else {
        for (const Json& token : logprobs["tokens"]) seen.tokens.push_back(token);
        for (const Json& offset : logprobs["text_offset"]) seen.offsets.push_back(offset);
      }
    }
    if (!choice["finish_reason"].is_null()) seen.finish = choice["finish_reason"], ++seen.ends;
  }
  // By index, from a whole answer or a stream.
  static std::vector<Seen> assemble(const Answer& answer, std::size_t choices) {
    std::vector<Seen> out(choices);
    std::vector<std::string> texts = answer.events;
    if (texts.empty()) texts = {answer.body};
    for (const std::string& text : texts) {
      if (text == "[DONE]") continue;
      const Json chunk = parsed(text);
      for (const Json& choice : chunk["choices"]) {
        const auto index = choice["index"].get<std::size_t>();
        EXPECT_LT(index, choices);
        if (index < choices) take(out[index], choice);
      }
    }
    return out;
  }
};

TEST_F(ChoicesTest, EveryPairOfFeatures) {
  engine_.bytes = {{10, " w"}, {11, " x"}, {50, "a"}, {51, "b"}};
  for (bool chat : {true, false}) {
    for (unsigned bits = 0; bits < 16; ++bits) {
      const bool stream = bits & 1, several = bits & 2, logprobs = bits & 4, echo = (bits & 8) && !chat;
      const std::size_t first = engine_.submitted(), n = several ? 3 : 1;
      std::string body = chat ? R"({"messages":[{"role":"user","content":"hi"}],)" : R"({"prompt":"ab",)";
      body += fmt::format("\"seed\":7,\"n\":{},\"stream\":{},\"stop\":\"zz\"", n, stream);
      if (logprobs) body += chat ? ",\"logprobs\":true,\"top_logprobs\":1" : ",\"logprobs\":1";
      if (echo) body += ",\"echo\":true";
      auto answer = post(chat ? kChat : kText, body + "}");
      wait_submitted(first + n);
      for (std::size_t k = n; k-- > 0;) play(first + k);
      for (std::size_t k = 0; k < n; ++k) {
        const wire::SamplingParams params = engine_.request(first + k).sampling;
        EXPECT_EQ(params.seed, seed_of_choice(7, k)) << body;
        EXPECT_EQ(params.top_logprobs, logprobs ? 1 : -1) << body;
        EXPECT_EQ(params.prompt_logprobs_from, logprobs && echo ? 0 : -1) << body;
      }
      const Answer got = answer.get();
      ASSERT_EQ(got.status, 200) << body << got.body;
      const std::vector<Seen> seen = assemble(got, n);
      for (std::size_t k = 0; k < n; ++k) {
        const std::string text = " w" + std::to_string(first + k) + " x";
        EXPECT_EQ(seen[k].text, (echo ? "ab" : "") + text) << body;
        EXPECT_EQ(seen[k].finish, "length") << body;
        EXPECT_EQ(seen[k].ends, 1) << body;
        std::vector<std::string> tokens;
        if (logprobs)
          tokens = echo ? std::vector<std::string>{"a", "b", " w", " x"} : std::vector<std::string>{" w", " x"};
        EXPECT_EQ(seen[k].tokens, tokens) << body;
        if (logprobs && echo) {
          EXPECT_EQ((std::vector<int64_t>{seen[k].offsets.begin(), seen[k].offsets.begin() + 3}),
                    (std::vector<int64_t>{0, 1, 2}));
        }
      }
    }
  }
}

TEST_F(ChoicesTest, APromptCountsOnce) {
  auto answer = post(kText, R"({"prompt":["a","b"],"n":2})");
  wait_submitted(4);
  for (std::size_t i = 0; i < 4; ++i) play(i);
  const Json usage = answer.get().json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 10);
  EXPECT_EQ(usage["completion_tokens"], 8);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0 + 2);  // what was there before the first choice
}

// A long prompt is held once, however many choices it has.
TEST_F(ChoicesTest, TheChoicesOfAPromptShareIt) {
  auto answer = post(kText, R"({"prompt":["a","b"],"n":3})");
  wait_submitted(6);
  const auto of = [&](std::size_t i) { return &*engine_.request(i).prompt; };
  EXPECT_TRUE(of(0) == of(1) && of(0) == of(2));
  EXPECT_TRUE(of(3) == of(4) && of(3) == of(5) && of(3) != of(0));
  for (std::size_t i = 0; i < 6; ++i) play(i);
  EXPECT_EQ(answer.get().status, 200);
}

TEST_F(ChoicesTest, SizesAreCheckedBeforeAnythingIsRepeated) {
  const std::string text(600'000, 'a');  // times 128 it is over 64 MiB, times 100 it is not
  for (const char* field : {"n", "best_of"}) {
    const Answer refused = post(kText, R"({"prompt":")" + text + R"(",")" + field + R"(":128})").get();
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.json()["error"]["param"], field) << refused.body;
    EXPECT_NE(refused.body.find("wanted at most 67108864 bytes"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(post(kChat, R"({"messages":[{"role":"user","content":")" + text + R"("}],"n":128})").get().status, 400);
  EXPECT_EQ(post("/generate", R"({"text":")" + text + R"(","sampling_params":{"n":128}})").get().status, 400);
  EXPECT_EQ(engine_.submitted(), 0u);
  auto answer = post(kText, R"({"prompt":")" + text + R"(","n":100})");
  wait_submitted(100);
  for (std::size_t i = 0; i < 100; ++i) play(i);
  EXPECT_EQ(answer.get().status, 200);
}

TEST_F(ChoicesTest, BestOfKeepsTheLikeliest) {
  auto answer = post(kText, R"({"prompt":["a","b"],"n":2,"best_of":3})");
  wait_submitted(6);
  const double means[] = {-3.0, -1.0, -2.0, -0.5, -4.0, -0.25};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(engine_.request(i).sampling.top_logprobs, 0);
    play(i, means[i]);
  }
  const Answer got = answer.get();
  const std::vector<Seen> seen = assemble(got, 4);
  EXPECT_EQ(seen[0].text, " w1 x");
  EXPECT_EQ(seen[1].text, " w2 x");
  EXPECT_EQ(seen[2].text, " w5 x");
  EXPECT_EQ(seen[3].text, " w3 x");
  EXPECT_EQ(got.json()["choices"][0]["logprobs"], Json());  // the client asked for none
  EXPECT_EQ(got.json()["usage"]["completion_tokens"], 12);  // all were computed
}

TEST_F(ChoicesTest, EchoOfIdsAsksTheTokenizer) {
  auto answer = post(kText, R"({"prompt":[1,2],"echo":true,"max_tokens":0,"logprobs":0})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, 0);
  engine_.accept(0);
  wire::TextDelta last{.id = ReqId{1}, .usage = {2, 0, 0}};
  last.prompt_logprobs = {FakeEngine::position(1, std::nullopt), FakeEngine::position(2, -0.5)};
  last.finish = wire::Finish{.reason = FinishReason::kLength};
  engine_.deliver(0, last);
  const Json choice = answer.get().json()["choices"][0];
  EXPECT_EQ(choice["text"], "text");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json::parse("[null,-0.5]"));
  EXPECT_EQ(post(kText, fmt::format("{{\"prompt\":[{}],\"echo\":true}}", FakeEngine::kUndecodable)).get().status, 503);
  EXPECT_EQ(engine_.submitted(), 1u);
}

TEST_F(ChoicesTest, TheStopTokensPositionIsAmongTheLogprobs) {
  auto answer = post(kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.token(0, 10, "a", {5, 1, 0}, -1.0);
  wire::TextDelta last{.id = ReqId{1}, .usage = {5, 2, 0}};
  last.finish = wire::Finish{.reason = FinishReason::kStop, .matched_token = 3};
  last.logprobs = {FakeEngine::position(3, -0.5)};
  engine_.deliver(0, last);
  const Json body = answer.get().json();
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), body["usage"]["completion_tokens"].get<std::size_t>());
}

TEST_F(ChoicesTest, RefusedCombinations) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {kText, R"({"prompt":"x","best_of":2,"stream":true})", "best_of"},
      {kText, R"({"prompt":"x","best_of":1,"n":2})", "best_of"},
      {kText, R"({"prompt":"x","best_of":129})", "best_of"},
      {kText, R"({"prompt":["x","y","z"],"n":86})", "n"},
      {kText, R"({"prompt":["x","y","z"],"best_of":86})", "best_of"},
      {kText, R"({"prompt":"x","logprobs":21})", "logprobs"},
      {kText, R"({"prompt":"x","logprobs":-1})", "logprobs"},
      {kText, R"({"prompt":"x","logprobs":true})", "logprobs"},
      {kText, R"({"prompt":"x","top_logprobs":2})", "top_logprobs"},
      {kText, R"({"prompt":"x","max_tokens":0})", "max_tokens"},
      {kText, R"({"prompt":"x","min_tokens":17})", "min_tokens"},
      {kText, R"({"prompt":"x","suffix":"y"})", "suffix"},
      {kText, R"({"prompt":"x","echo":1})", "echo"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "top_logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})", "top_logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"logprobs":2})", "logprobs"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"echo":true})", "echo"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"best_of":2})", "best_of"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"n":0})", "n"},
      {kChat, R"({"messages":[{"role":"user","content":"x"}],"rid":""})", "rid"},
  };
  for (const auto& [path, body, param] : cases) {
    const Answer got = post(path, body).get();
    EXPECT_EQ(got.status, 400) << body;
    EXPECT_EQ(got.json()["error"]["param"], param) << body << got.body;
  }
  EXPECT_EQ(engine_.submitted(), 0u);
}

}  // namespace
}  // namespace millrace::api::testing
