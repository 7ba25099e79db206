// The blocking client against the real server, and its two parsers.
#include "http/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/log.h"
#include "http/server.h"

namespace millrace::http {
namespace {

TEST(ParseUrl, TakesWhatUsersWrite) {
  struct Case {
    std::string text, host;
    uint16_t port;
  };
  const Case cases[] = {
      {"http://localhost:8080", "localhost", 8080},
      {"http://localhost:8080/", "localhost", 8080},
      {"http://localhost:8080/v1", "localhost", 8080},
      {"localhost:8080", "localhost", 8080},
      {"example.org", "example.org", 30000},
      {"http://example.org/v1", "example.org", 30000},
      {":8080", "127.0.0.1", 8080},
      {"", "127.0.0.1", 30000},
      {"http://[::1]:8080", "::1", 8080},
      {"[::1]", "::1", 30000},
      {"http://10.0.0.1:65535", "10.0.0.1", 65535},
  };
  for (const Case& each : cases) {
    const auto url = parse_url(each.text);
    ASSERT_TRUE(url.ok()) << each.text << ": " << url.status().to_string();
    EXPECT_EQ(url->host, each.host) << each.text;
    EXPECT_EQ(url->port, each.port) << each.text;
  }
}

TEST(ParseUrl, RefusesTheRest) {
  for (const char* text : {"https://localhost", "ftp://x:1", "localhost:", "localhost:port", "localhost:65536",
                           "localhost:-1", "localhost:80x", "localhost:0", "::1", "[::1", "http://http://x"}) {
    const auto url = parse_url(text);
    EXPECT_FALSE(url.ok()) << text;
    if (!url.ok()) {
      EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument);
    }
  }
}

const std::string kStream = "data: {\"a\":1}\n\n: a comment\n\nevent: b\ndata: two\n\ndata: \n\ndata: [DONE]\n\n";
const std::vector<std::string> kEvents = {"{\"a\":1}", "two", "", "[DONE]"};

TEST(SseReader, TheSameEventsHoweverTheStreamIsCut) {
  for (std::size_t first = 0; first <= kStream.size(); ++first) {
    for (std::size_t second = first; second <= kStream.size(); ++second) {
      std::vector<std::string> events;
      const auto take = [&](std::string_view event) {
        events.emplace_back(event);
        return true;
      };
      SseReader reader;
      EXPECT_TRUE(reader.push(std::string_view(kStream).substr(0, first), take));
      EXPECT_TRUE(reader.push(std::string_view(kStream).substr(first, second - first), take));
      EXPECT_TRUE(reader.push(std::string_view(kStream).substr(second), take));
      ASSERT_EQ(events, kEvents) << first << " " << second;
    }
  }
}

TEST(SseReader, AnIncompleteEventIsNoneAndAFalseStops) {
  SseReader reader;
  int count = 0;
  EXPECT_TRUE(reader.push("data: half\n", [&](std::string_view) { return ++count > 0; }));
  EXPECT_EQ(count, 0);
  EXPECT_FALSE(reader.push("\ndata: more\n\n", [&](std::string_view) { return ++count < 1; }));
  EXPECT_EQ(count, 1);
}

class ClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  // False: this address cannot be bound here.
  bool start(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(std::move(options));
    server_->add_route({.method = "GET", .pattern = "/hello", .handler = [](RequestPtr in, ResponderPtr out) {
                          const std::string* host = in->headers.find("host");
                          out->send({.body = host ? *host : ""});
                        }});
    server_->add_route({.method = "POST", .pattern = "/echo", .handler = [](RequestPtr in, ResponderPtr out) {
                          out->send({.status = in->body == "teapot" ? 418 : 200, .body = in->body});
                        }});
    server_->add_route({.method = "POST", .pattern = "/stream", .handler = [this](RequestPtr, ResponderPtr out) {
                          out->on_disconnect([this] { ++gone_; });
                          out->start_sse();
                          for (char c : kStream) out->write(std::string(1, c));
                          if (!endless_) return out->end();
                          kept_ = out;
                        }});
    server_->add_route({.method = "POST", .pattern = "/broken", .handler = [](RequestPtr, ResponderPtr out) {
                          out->start_sse();
                          out->write("data: half");
                          out->abort();
                        }});
    return server_->start().ok();
  }
  void TearDown() override {
    if (server_) server_->stop();
  }
  Client client(std::string key = "") { return Client(*parse_url(server_->url()), std::move(key)); }

  std::unique_ptr<Server> server_;
  std::atomic<int> gone_{0};
  bool endless_ = false;
  ResponderPtr kept_;
};

TEST_F(ClientTest, GetsAndPosts) {
  ASSERT_TRUE(start());
  const auto hello = client().get("/hello");
  ASSERT_TRUE(hello.ok()) << hello.status().to_string();
  EXPECT_EQ(hello->status, 200);
  EXPECT_EQ(hello->body, "127.0.0.1:" + std::to_string(server_->port()));
  const std::string big(300'000, 'x');
  const auto echo = client().post("/echo", big);
  ASSERT_TRUE(echo.ok()) << echo.status().to_string();
  EXPECT_EQ(echo->body, big);
  EXPECT_EQ(client().get("/nowhere")->status, 404);
}

TEST_F(ClientTest, SixthVersionOfTheInternet) {
  ServerOptions options;
  options.host = "::1";
  if (!start(std::move(options))) GTEST_SKIP() << "no IPv6 loopback address here";
  const auto hello = client().get("/hello");
  ASSERT_TRUE(hello.ok()) << hello.status().to_string();
  EXPECT_EQ(hello->status, 200);
  EXPECT_EQ(hello->body, "[::1]:" + std::to_string(server_->port()));
}

TEST_F(ClientTest, TheKeyIsSent) {
  ServerOptions options;
  options.api_key = "secret";
  ASSERT_TRUE(start(std::move(options)));
  EXPECT_EQ(client("secret").get("/hello")->status, 200);
  EXPECT_EQ(client("wrong").get("/hello")->status, 401);
  EXPECT_EQ(client().get("/hello")->status, 401);
}

TEST_F(ClientTest, StreamsArriveEventByEvent) {
  ASSERT_TRUE(start());
  SseReader reader;
  std::vector<std::string> events;
  const auto response = client().post("/stream", "{}", [&](std::string_view bytes) {
    return reader.push(bytes, [&](std::string_view event) {
      events.emplace_back(event);
      return true;
    });
  });
  ASSERT_TRUE(response.ok()) << response.status().to_string();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "");
  EXPECT_EQ(events, kEvents);
}

TEST_F(ClientTest, HangingUpEndsTheRequest) {
  endless_ = true;
  ASSERT_TRUE(start());
  const auto response = client().post("/stream", "{}", [](std::string_view) { return false; });
  EXPECT_TRUE(response.ok());
  for (int i = 0; i < 24'000 && gone_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(gone_, 1);
}

TEST_F(ClientTest, ErrorsKeepTheirBodyEvenWithACallback) {
  ASSERT_TRUE(start());
  bool called = false;
  const auto response = client().post("/echo", "teapot", [&](std::string_view) { return called = true; });
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 418);
  EXPECT_EQ(response->body, "teapot");
  EXPECT_FALSE(called);
}

TEST_F(ClientTest, ABrokenOffAnswerIsAnError) {
  ASSERT_TRUE(start());
  std::string got;
  const auto response = client().post("/broken", "{}", [&](std::string_view bytes) {
    got += bytes;
    return true;
  });
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable);
}

TEST_F(ClientTest, AnAbsentServerIsAnErrorWithTheAddress) {
  ASSERT_TRUE(start());
  Client late = client();
  const std::string port = std::to_string(server_->port());
  server_->stop();
  const auto response = late.get("/hello");
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(response.status().message().find("127.0.0.1:" + port), std::string::npos) << response.status().message();
}

}  // namespace
}  // namespace millrace::http
