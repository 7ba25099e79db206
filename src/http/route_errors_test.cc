// Errors that the server itself answers, on a route that renders them.
#include <gtest/gtest.h>

#include <memory>

#include "base/log.h"
#include "http/server.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::Client;
using testing::get;
using testing::post;
using testing::Reply;

class RouteErrors : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }

  void SetUp() override {
    server_ = std::make_unique<Server>(
        ServerOptions{.api_key = "k", .render_error = [](int, std::string_view) { return "<general>"; }});
    Route route{.method = "POST", .pattern = "/errors"};
    route.render_error = [](int status, std::string_view message, std::string_view request_id) {
      return Response{.status = status, .headers = {{"x-same", std::string(request_id)}}, .body = std::string(message)};
    };
    route.handler = [](RequestPtr, ResponderPtr) {};  // drops the responder
    server_->add_route(std::move(route));
    const Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  std::unique_ptr<Server> server_;
};

TEST_F(RouteErrors, AreRenderedByTheRoute) {
  Client client(server_->port());
  const std::string key = "Authorization: Bearer k\r\n";
  const auto expect = [](const Reply& reply, int status, const std::string& message) {
    EXPECT_EQ(reply.status, status);
    EXPECT_TRUE(reply.body.starts_with(message)) << reply.body;
    EXPECT_EQ(reply.header("x-same"), reply.header("x-request-id"));
  };
  const Reply no_key = client.request(post("/errors", "{}"));
  expect(no_key, 401, "missing API key");
  EXPECT_EQ(no_key.header("www-authenticate"), "Bearer");
  expect(client.request(get("/errors", key)), 405, "method is GET");
  expect(client.request(post("/errors", "{}", key)), 500, "internal error");
  EXPECT_EQ(client.request(get("/errors/none", key)).body, "<general>");
}

}  // namespace
}  // namespace millrace::http
