// Logprobs in the shapes of OpenAI's reference (chat and completions) and of SGLang's native endpoint.
#include "api/logprobs.h"

#include <gtest/gtest.h>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

class LogprobsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_.bytes = {{1, " cat"}, {2, "\xC3"}, {3, "\xA9"}, {4, ""}, {5, "dog"}, {6, "\xE2"}, {7, "<s>"}};
  }
  FakeEngine engine_;
};

TEST_F(LogprobsTest, Chat) {
  const std::vector<wire::TokenLogprobs> tokens = {FakeEngine::position(1, -0.5, {{1, -0.5}, {2, -1.25}}),
                                                   FakeEngine::position(2, -INFINITY)};
  std::string out;
  append_chat_logprobs(out, {engine_}, tokens);
  const Json wanted = Json::parse(R"({"content":[
    {"token":" cat","logprob":-0.5,"bytes":[32,99,97,116],"top_logprobs":[
      {"token":" cat","logprob":-0.5,"bytes":[32,99,97,116]},{"token":"\ufffd","logprob":-1.25,"bytes":[195]}]},
    {"token":"\ufffd","logprob":-9999.0,"bytes":[195],"top_logprobs":[]}],"refusal":null})");
  EXPECT_EQ(parsed(out), wanted);
}

TEST_F(LogprobsTest, CompletionsAlignWithTheText) {
  // <s> is not in the text, " cat" begins it without its space, "e acute" comes in two tokens, then "dog".
  TextOffset offset{.text =
                        "cat\xC3\xA9"
                        "dog"};
  const std::vector<wire::TokenLogprobs> prompt = {FakeEngine::position(7, std::nullopt),
                                                   FakeEngine::position(1, -1.0)};
  const std::vector<wire::TokenLogprobs> tokens = {FakeEngine::position(2, -2.0, {{6, -0.25}, {2, -2.0}}),
                                                   FakeEngine::position(3, -3.0, {{5, -0.125}}),
                                                   FakeEngine::position(5, -4.0), FakeEngine::position(4, 0.0)};
  std::string out;
  append_text_logprobs(out, {engine_}, prompt, tokens, offset);
  const Json wanted = Json::parse(R"({"tokens":["<s>"," cat","bytes:\\xc3","bytes:\\xa9","dog",""],
    "token_logprobs":[null,-1.0,-2.0,-3.0,-4.0,0.0],
    "top_logprobs":[null,{" cat":-1.0},{"bytes:\\xe2":-0.25,"bytes:\\xc3":-2.0},{"dog":-0.125,"bytes:\\xa9":-3.0},
      {"dog":-4.0},{"":0.0}],"text_offset":[0,0,3,3,4,7]})");
  EXPECT_EQ(parsed(out), wanted);
  // The next chunk of a stream goes on where this one ended; its text may lag behind its tokens.
  out.clear();
  append_text_logprobs(out, {engine_}, {}, tokens, offset);
  EXPECT_EQ(parsed(out)["text_offset"], Json({7, 7, 8, 11}));
}

TEST_F(LogprobsTest, Native) {
  const std::vector<wire::TokenLogprobs> positions = {
      FakeEngine::position(7, std::nullopt), FakeEngine::position(1, -0.5, {{5, -0.25}, {1, -0.5}}, {-7.0, -8.0})};
  std::string plain, text, top, ids;
  append_native_logprobs(plain, engine_, positions, false);
  append_native_logprobs(text, engine_, positions, true);
  append_native_top(top, engine_, positions, false);
  append_native_of_ids(ids, engine_, positions, std::vector<int32_t>{9, 2}, true);
  EXPECT_EQ(parsed(plain), Json::parse("[[null,7,null],[-0.5,1,null]]"));
  EXPECT_EQ(parsed(text), Json::parse(R"([[null,7,"<s>"],[-0.5,1," cat"]])"));
  EXPECT_EQ(parsed(top), Json::parse("[null,[[-0.25,5,null],[-0.5,1,null]]]"));
  EXPECT_EQ(parsed(ids), Json::parse(R"([null,[[-7.0,9,"t9"],[-8.0,2,"\ufffd"]]])"));
}

TEST_F(LogprobsTest, NumbersAreFiniteAndAsTheWireHasThem) {
  for (double value : {-1.0f / 3.0f, -1e-30f, -87.25f}) {
    std::string out;
    append_native_logprobs(out, engine_, std::vector{FakeEngine::position(1, value)}, false);
    EXPECT_EQ(static_cast<float>(parsed(out)[0][0].get<double>()), static_cast<float>(value));
  }
  for (double value : {-double{INFINITY}, double{NAN}, -1e30}) {
    std::string out;
    append_native_logprobs(out, engine_, std::vector{FakeEngine::position(1, value)}, false);
    EXPECT_EQ(parsed(out)[0][0], Json(-9999.0));
  }
}

TEST_F(LogprobsTest, MeansRankTexts) {
  EXPECT_EQ(mean_logprob(std::vector{FakeEngine::position(1, -1.0), FakeEngine::position(2, -3.0)}), -2.0);
  EXPECT_LT(mean_logprob({}), mean_logprob(std::vector{FakeEngine::position(1, -INFINITY)}));
}

}  // namespace
}  // namespace millrace::api::testing
