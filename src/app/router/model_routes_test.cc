// The paths of a server of several models are those of a server of one.
#include "app/router/model_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/testing/api_harness.h"
#include "app/router/pull_routes.h"

namespace millrace {
namespace {

class ModelRoutesTest : public api::testing::ApiHarness {};

TEST_F(ModelRoutesTest, EachRouteOfOneModelIsOneOfSeveralToo) {
  ModelPool pool({}, {}, [](const ServedModel&) -> Result<std::unique_ptr<ModelProcess>> {
    return Status(StatusCode::kUnavailable, "no model is loaded here");
  });
  http::Forwarder forwarder([](const std::string&) { return http::Response{.status = 503}; });
  http::Server router(http::ServerOptions{});
  ModelRoutes routes({.version = "test", .web = false}, pool, forwarder, router);
  PullRoutes pulls({}, pool, router);
  routes.add();
  pulls.add();
  const std::vector<const http::Route*> all = router.routes();
  ASSERT_GT(server_->routes().size(), 60u);
  for (const http::Route* one : server_->routes()) {
    const auto same = std::find_if(all.begin(), all.end(), [one](const http::Route* route) {
      return route->method == one->method && route->pattern == one->pattern;
    });
    ASSERT_NE(same, all.end()) << one->method << " " << one->pattern;
    EXPECT_EQ((*same)->access, one->access) << one->method << " " << one->pattern;
  }
}

}  // namespace
}  // namespace millrace
