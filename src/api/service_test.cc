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

}  // namespace
}  // namespace millrace::api::testing
