// Static files over HTTP: which form a client gets, what it may keep, and what a page may not do.
#include "http/static_files.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::Client;
using testing::get;
using testing::Reply;

constexpr StaticFile kFiles[] = {
    {"/", "text/html; charset=utf-8", "abc", "<p>plain</p>", "compressed"},
    {"/web/app.js", "text/javascript; charset=utf-8", "def", "export {}", "small"},
};

class StaticFilesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }

  void SetUp() override {
    server_ = std::make_unique<Server>(ServerOptions{.api_key = "secret"});
    add_static_files(*server_, kFiles);
    ASSERT_TRUE(server_->start().ok());
  }
  Reply ask(const std::string& path, const std::string& fields = "", const std::string& method = "GET") {
    Client client(server_->port());
    client.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields + "\r\n");
    return client.read_reply(method == "HEAD");
  }

  std::unique_ptr<Server> server_;
};

TEST_F(StaticFilesTest, NeedNoKeyAndSendNoSecret) {
  const Reply page = ask("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "<p>plain</p>");
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.header("Cache-Control"), "no-cache");
  EXPECT_EQ(page.header("Content-Encoding"), "");
  EXPECT_EQ(ask("/web/app.js").header("Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(ask("/web/other.js").status, 401);  // no route needs the key, as every unknown path
}

TEST_F(StaticFilesTest, MayLoadNothingFromOutside) {
  const std::string policy = ask("/").header("Content-Security-Policy");
  EXPECT_TRUE(policy.starts_with("default-src 'self';")) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_EQ(ask("/").header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(ask("/").header("Referrer-Policy"), "no-referrer");
}

TEST_F(StaticFilesTest, AreCompressedForClientsThatTakeIt) {
  const Reply page = ask("/", "Accept-Encoding: deflate, GZIP;q=0.5\r\n");
  EXPECT_EQ(page.body, "compressed");
  EXPECT_EQ(page.header("Content-Encoding"), "gzip");
  EXPECT_EQ(page.header("Vary"), "Accept-Encoding");
  EXPECT_EQ(page.header("ETag"), "\"abc-gz\"");
  EXPECT_EQ(ask("/").header("ETag"), "\"abc\"");
  EXPECT_EQ(ask("/").header("Vary"), "Accept-Encoding");
}

TEST_F(StaticFilesTest, ReadWeightsOfCodings) {
  const auto takes = [](const char* value) { return accepts_gzip({{"Accept-Encoding", value}}); };
  EXPECT_TRUE(takes("gzip"));
  EXPECT_TRUE(takes("br, gzip ; q=0.001"));
  EXPECT_TRUE(takes("*"));
  EXPECT_FALSE(takes("gzip;q=0"));
  EXPECT_FALSE(takes("gzip; q=0.000, *"));
  EXPECT_FALSE(takes("*;q=0"));
  EXPECT_FALSE(takes("identity, gzipped"));
  EXPECT_FALSE(takes(""));
  EXPECT_FALSE(accepts_gzip({}));
}

TEST_F(StaticFilesTest, AreNotSentAgainToAClientThatHasThem) {
  for (const char* given : {"\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*"}) {
    const Reply reply = ask("/", "If-None-Match: " + std::string(given) + "\r\n");
    EXPECT_EQ(reply.status, 304) << given;
    EXPECT_EQ(reply.body, "");
    EXPECT_EQ(reply.header("ETag"), "\"abc\"");
    EXPECT_EQ(reply.header("Cache-Control"), "no-cache");
  }
  // A tag of the other form, or of another file, is not a match.
  EXPECT_EQ(ask("/", "If-None-Match: \"abc-gz\"\r\n").status, 200);
  EXPECT_EQ(ask("/", "If-None-Match: \"def\"\r\n").status, 200);
  EXPECT_EQ(ask("/", "Accept-Encoding: gzip\r\nIf-None-Match: \"abc-gz\"\r\n").status, 304);
}

TEST_F(StaticFilesTest, AnswerHeadWithTheSameHeader) {
  const Reply head = ask("/", "", "HEAD");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "12");
  EXPECT_EQ(head.header("ETag"), "\"abc\"");
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(ask("/", "Authorization: Bearer secret\r\n", "POST").status, 405);
}

}  // namespace
}  // namespace millrace::http
