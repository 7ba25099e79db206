// What clients of /v1/rerank get for what the engine reports.
#include <gtest/gtest.h>

#include "api/choices.h"
#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

class RerankTest : public ApiHarness {
 protected:
  void SetUp() override {
    engine_.facts.rerank = RerankFacts{.tokens = {8, 9}, .head = {}};
    ApiHarness::SetUp();
  }
  std::future<Answer> ask() {
    auto answer = post("/v1/rerank", R"({"query":"q","documents":["a","b"]})");
    wait_submitted(2);
    for (const std::size_t i : {0u, 1u}) engine_.accept(i);
    return answer;
  }
  void score(std::size_t index, double yes) {
    engine_.token(index, 9, "yes", {5, 1, 0}, -0.1, {}, {0, yes});
    engine_.end(index, {.reason = wire::FinishReason::kLength}, 1);
  }
};

TEST_F(RerankTest, TheBestDocumentIsFirst) {
  auto answer = ask();
  score(0, -2);
  score(1, 2);
  const Json results = answer.get().json()["results"];
  EXPECT_EQ(results[0]["index"], 1);
  EXPECT_GT(results[0]["relevance_score"], 0.5);
  EXPECT_LT(results[1]["relevance_score"], 0.5);
}

TEST_F(RerankTest, AnAbortIsNoErrorOfTheModel) {
  auto answer = ask();
  score(0, 2);
  engine_.end(1, {.reason = wire::FinishReason::kAborted}, 0);
  const Answer aborted = answer.get();
  EXPECT_EQ(aborted.status, 499);
  EXPECT_EQ(aborted.json()["error"]["message"], "the request was aborted before its score was complete");
}

TEST_F(RerankTest, TheQueryOfManyDocumentsHasALimit) {
  const std::string query(kMaxPromptVolumeBytes / 100, 'q');
  std::string documents = "\"a\"";
  for (int i = 1; i < 120; ++i) documents += ",\"a\"";
  auto answer = post("/v1/rerank", R"({"query":")" + query + R"(","documents":[)" + documents + "]}");
  const auto reply = answer.get();
  EXPECT_EQ(reply.status, 400);
  const std::string message = parsed(reply.body)["error"]["message"];
  EXPECT_TRUE(message.starts_with("documents has 120 entries, each with the ")) << message;
  EXPECT_EQ(engine_.submitted(), 0u);
}

}  // namespace
}  // namespace millrace::api::testing
