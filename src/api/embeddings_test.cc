// What clients of embeddings get for what the engine reports, over real sockets.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

class EmbeddingsTest : public ApiHarness {
 protected:
  void SetUp() override {
    engine_.facts.embedding_size = 4;
    ApiHarness::SetUp();
  }
  void end(std::size_t index, const std::vector<float>& row) {
    wire::TextDelta delta{
        .id = ReqId{index + 1}, .finish = wire::Finish{.reason = FinishReason::kLength}, .usage = {.prompt_tokens = 5}};
    wire::Embedding& embedding = delta.embedding.emplace();
    embedding.values.bytes.assign(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    engine_.deliver(index, delta);
  }
};

TEST_F(EmbeddingsTest, EachInputIsARequestForItsEmbedding) {
  auto answer = post("/v1/embeddings", R"({"input":["a",[5,6]],"cache_salt":"s","priority":3})");
  wait_submitted(2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(engine_.request(i).embed);
    EXPECT_EQ(engine_.request(i).max_tokens, 0);
    EXPECT_EQ(engine_.request(i).priority, 3);
    EXPECT_FALSE(engine_.request(i).extra_key.empty());
    engine_.accept(i);
  }
  end(1, {0, 2, 0, 0});
  end(0, {3, 0, -4, 0});
  const Json body = answer.get().json();
  EXPECT_EQ(body, parsed(R"({"object":"list","model":"demo","data":[)"
                         R"({"object":"embedding","index":0,"embedding":[0.6,0,-0.8,0]},)"
                         R"({"object":"embedding","index":1,"embedding":[0,1,0,0]}],)"
                         R"("usage":{"prompt_tokens":10,"total_tokens":10}})"));
}

TEST_F(EmbeddingsTest, FirstDimensionsAsTheyAreAndInBase64) {
  auto answer = post("/v1/embeddings", R"({"input":"a","dimensions":2,"normalize":false,"encoding_format":"base64"})");
  wait_submitted(1);
  engine_.accept(0);
  end(0, {1, -2, 3, 4});
  EXPECT_EQ(answer.get().json()["data"][0]["embedding"], "AACAPwAAAMA=");
}

TEST_F(EmbeddingsTest, WhatHasNoLengthIsAnError) {
  for (const std::vector<float>& row : {std::vector<float>{0, 0, 0, 0},
                                        {},
                                        {std::numeric_limits<float>::quiet_NaN(), 0, 0, 0},
                                        {std::numeric_limits<float>::infinity(), 0, 0, 0}}) {
    const std::size_t index = engine_.submitted();
    auto answer = post("/v1/embeddings", R"({"input":"a"})");
    wait_submitted(index + 1);
    engine_.accept(index);
    end(index, row);
    EXPECT_EQ(answer.get().status, 500);
  }
}

TEST_F(EmbeddingsTest, AnAbortIsNoErrorOfTheModel) {
  for (const char* path : {"/v1/embeddings", "/api/embed"}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(path, R"({"model":"demo","input":["a","b"],"rid":"x"})");
    wait_submitted(index + 2);
    engine_.accept(index), engine_.accept(index + 1);
    end(index, {3, 0, -4, 0});
    engine_.end(index + 1, {.reason = FinishReason::kAborted}, 0);
    const Answer aborted = answer.get();
    EXPECT_EQ(aborted.status, 499);
    EXPECT_NE(aborted.body.find("aborted before its embedding was complete"), std::string::npos) << aborted.body;
  }
}

TEST_F(EmbeddingsTest, OllamasShapes) {
  auto embed = post("/api/embeddings", R"({"model":"demo:latest","prompt":"a"})");
  wait_submitted(1);
  EXPECT_EQ(std::get<TokenPrompt>(*engine_.request(0).prompt).ids, (std::vector<int32_t>{1, 2}));
  engine_.accept(0);
  end(0, {0, 2, 0, 0});
  EXPECT_EQ(embed.get().json(), parsed(R"({"embedding":[0,1,0,0]})"));
  const Answer refused = post("/api/embed", R"({"model":"demo","input":"a","dimensions":5})").get();
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(refused.json()["error"].is_string());
}

TEST_F(EmbeddingsTest, AModelThatGivesNoneAnswersWhy) {
  engine_.facts.no_embeddings = "its layers are split";
  const Answer answer = post("/v1/embeddings", R"({"input":"a"})").get();
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.json()["error"]["message"].get<std::string>().find("its layers are split"), std::string::npos);
}

}  // namespace
}  // namespace millrace::api::testing
