// /ready under all its names, and /v1/models.
#include <gtest/gtest.h>

#include <string>

#include "api/health.h"
#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

class ServiceTest : public ApiHarness {};

TEST_F(ServiceTest, ProbesOfOtherServersAreAnsweredAsReady) {
  for (const bool ready : {true, false}) {
    engine_.state.ready = ready;
    const Answer wanted = get("/ready");
    EXPECT_EQ(wanted.status, ready ? 200 : 503);
    for (const std::string path : {"/health", "/v1/health", "/ping", "/health_generate"}) {
      const Answer answer = get(path);
      EXPECT_EQ(answer.status, wanted.status) << path;
      EXPECT_EQ(answer.body, wanted.body) << path;
    }
  }
  EXPECT_EQ(engine_.submitted(), 0u);
}

// The members that OpenAI's clients read, and those that Anthropic's do.
TEST_F(ServiceTest, ModelsAreListedForBothFamiliesOfClients) {
  engine_.facts.created = 1795481298;
  context_->names.names = {"demo", "other"};
  const Json wanted = parsed(
      R"({"id":"other","object":"model","type":"model","display_name":"other","created":1795481298,)"
      R"("created_at":"2026-11-24T00:48:18Z","owned_by":"millrace","root":"demo","parent":null,"max_model_len":64})");
  EXPECT_EQ(get("/v1/models/other").json(), wanted);
  const Json list = get("/v1/models").json();
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][1], wanted);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["first_id"], "demo");
  EXPECT_EQ(list["last_id"], "other");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(get("/models").json(), list);
}

}  // namespace
}  // namespace millrace::api::testing
