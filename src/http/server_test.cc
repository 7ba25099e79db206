// The server as a well-behaved client sees it: methods, keep-alive, pipelining, bodies, CORS, auth, start and stop.
#include "http/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "base/log.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::Client;
using testing::eventually;
using testing::get;
using testing::post;
using testing::Reply;
using namespace std::chrono_literals;

// A server with an echo route, a public one, an admin one and one with parameters.
class ServerTest : public ::testing::Test {
 protected:
  // Before any thread: libspdlog is not instrumented, so ThreadSanitizer would not see it initialize itself safely.
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }

  void start(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(std::move(options));
    auto plain = [](RequestPtr, ResponderPtr out) { out->send({.content_type = "text/plain", .body = "hello"}); };
    server_->add_route({.method = "GET", .pattern = "/health", .access = Access::kPublic, .handler = plain});
    server_->add_route({.method = "GET", .pattern = "/v1/models", .handler = plain});
    server_->add_route({.method = "POST", .pattern = "/admin/stop", .access = Access::kAdmin, .handler = plain});
    server_->add_route({.method = "POST", .pattern = "/echo", .handler = [this](RequestPtr in, ResponderPtr out) {
                          ++handled_;
                          out->send({.content_type = "text/plain", .body = in->body});
                        }});
    server_->add_route(
        {.method = "GET", .pattern = "/show/{id}/{rest...}", .handler = [](RequestPtr in, ResponderPtr out) {
           std::string q;
           if (!in->query_value("q", q)) q = "(none)";
           out->send({.body = std::string(in->param("id")) + "|" + std::string(in->param("rest")) + "|" + q});
         }});
    Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  uint16_t port() const { return server_->port(); }

  std::unique_ptr<Server> server_;
  std::atomic<int> handled_{0};
};

TEST_F(ServerTest, AnswersGetWithTheUsualFields) {
  start();
  EXPECT_NE(port(), 0);
  EXPECT_EQ(server_->url(), "http://127.0.0.1:" + std::to_string(port()));
  Client client(port());
  Reply reply = client.request(get("/health"));
  EXPECT_EQ(reply.status_line, "HTTP/1.1 200 OK");
  EXPECT_EQ(reply.body, "hello");
  EXPECT_EQ(reply.header("content-type"), "text/plain");
  EXPECT_EQ(reply.header("server"), "millrace");
  EXPECT_EQ(reply.header("date").size(), 29u) << reply.header("date");
  EXPECT_TRUE(reply.header("date").ends_with(" GMT"));
  EXPECT_EQ(reply.header("connection"), "");
  EXPECT_TRUE(reply.header("x-request-id").starts_with("req-"));
}

TEST_F(ServerTest, HeadHasTheLengthButNoBody) {
  start();
  Client client(port());
  Reply reply = client.request("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n", true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-length"), "5");
  // The next response follows directly: no stray body bytes.
  EXPECT_EQ(client.request(get("/health")).body, "hello");
  Reply missing = client.request("HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", true);
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(client.request(get("/health")).status, 200);
}

TEST_F(ServerTest, UnknownPathAndMethod) {
  start();
  Client client(port());
  EXPECT_EQ(client.request(get("/nowhere")).status, 404);
  EXPECT_EQ(client.request(get("/health/")).status, 200);  // a slash at the end counts for nothing
  EXPECT_EQ(client.request(get("/health//")).status, 404);
  EXPECT_EQ(client.request(get("//health")).status, 404);
  EXPECT_EQ(client.request(get("/HEALTH")).status, 404);
  Reply reply = client.request("DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(client.request(get("/echo")).header("allow"), "POST, OPTIONS");
  Reply options = client.request("OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("allow"), "POST, OPTIONS");
  EXPECT_EQ(client.request("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 204);
}

TEST_F(ServerTest, PathParametersAreDecodedPerSegment) {
  start();
  Client client(port());
  EXPECT_EQ(client.request(get("/show/a%20b%2Fc/x/y?p=1&q=%C3%A9+z")).body, "a b/c|x/y|\xC3\xA9 z");
  EXPECT_EQ(client.request(get("/show//x")).status, 404);
  EXPECT_EQ(client.request(get("/show%2Fa/x")).status, 404);
}

TEST_F(ServerTest, KeepAliveAndClose) {
  start();
  Client client(port());
  for (int i = 0; i < 50; ++i) ASSERT_EQ(client.request(post("/echo", std::to_string(i))).body, std::to_string(i));
  Reply last = client.request(get("/health", "Connection: close\r\n"));
  EXPECT_EQ(last.header("connection"), "close");
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(server_->stats().connections_accepted, 1u);
}

TEST_F(ServerTest, Http10ClosesUnlessAskedToStay) {
  start();
  Client client(port());
  Reply reply = client.request("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(client.wait_closed());
  Client keeper(port());
  EXPECT_EQ(keeper.request("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").header("connection"),
            "keep-alive");
  EXPECT_EQ(keeper.request(get("/health")).status, 200);
}

TEST_F(ServerTest, ThousandPipelinedRequestsAnswerInSequence) {
  start();
  Client client(port());
  std::string all;
  for (int i = 0; i < 1000; ++i) all += post("/echo", "n" + std::to_string(i));
  std::thread sender([&] { EXPECT_TRUE(client.send(all)); });
  sender.join();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(client.read_reply().body, "n" + std::to_string(i));
  EXPECT_EQ(handled_, 1000);
}

TEST_F(ServerTest, BodiesFixedAndChunkedInAnyReads) {
  start();
  Client client(port());
  std::string big(3'000'000, 'x');
  EXPECT_EQ(client.request(post("/echo", big)).body, big);
  std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\n"
      "Transfer-Encoding: chunked\r\n\r\n";
  std::string chunks = "5\r\nhello\r\n1;ext=\"1\"\r\n \r\n00A\r\nworld56789\r\n0\r\nX-Trailer: 1\r\n\r\n";
  EXPECT_EQ(client.request(head + chunks).body, "hello world56789");
  for (char c : head + chunks) ASSERT_TRUE(client.send(std::string_view(&c, 1)));
  EXPECT_EQ(client.read_reply().body, "hello world56789");
  EXPECT_EQ(client.request(post("/echo", "")).body, "");
}

TEST_F(ServerTest, ExpectContinue) {
  start({.limits = {.body_bytes = 100}});
  Client client(port());
  std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n";
  Reply interim = client.request(head + "Content-Length: 4\r\n\r\n");
  EXPECT_EQ(interim.status, 100);
  EXPECT_EQ(client.request("body").body, "body");
  // The final status at once when the body will not be taken.
  Reply refused = client.request(head + "Content-Length: 101\r\n\r\n");
  EXPECT_EQ(refused.status, 413);
  EXPECT_TRUE(client.wait_closed());
  Client other(port());
  EXPECT_EQ(other.request(get("/health", "Expect: the-moon\r\n")).status, 417);
}

TEST_F(ServerTest, ContentTypeAndEncoding) {
  start();
  Client client(port());
  auto send = [&](std::string fields) {
    return client.request("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n" + fields + "\r\n{}").status;
  };
  EXPECT_EQ(send("Content-Type: application/json\r\n"), 200);
  EXPECT_EQ(send("Content-Type: Application/JSON ;charset=utf-8\r\n"), 200);
  EXPECT_EQ(send("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(send("Content-Type: application/jsonp\r\n"), 415);
  EXPECT_EQ(send(""), 415);
  EXPECT_EQ(send("Content-Type: application/json\r\nContent-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(send("Content-Type: application/json\r\nContent-Encoding: identity\r\n"), 200);
  EXPECT_EQ(server_->stats().connections_accepted, 1u) << "small refused bodies are read away, the connection stays";
}

TEST_F(ServerTest, RequestIdIsEchoedWhenWellFormed) {
  start();
  Client client(port());
  EXPECT_EQ(client.request(get("/health", "X-Request-Id: abc-1.2:3_Z\r\n")).header("x-request-id"), "abc-1.2:3_Z");
  for (std::string bad : {std::string(129, 'a'), std::string("a b"), std::string("<script>"), std::string()}) {
    std::string echoed = client.request(get("/health", "X-Request-Id: " + bad + "\r\n")).header("x-request-id");
    EXPECT_TRUE(echoed.starts_with("req-")) << echoed;
  }
  std::string first = client.request(get("/health")).header("x-request-id");
  EXPECT_NE(first, client.request(get("/health")).header("x-request-id"));
}

TEST_F(ServerTest, AuthIsDefaultDeny) {
  start({.api_key = "sk-user", .admin_api_key = "sk-admin"});
  struct Case {
    std::string request_line;
    std::string key;  // "": no Authorization field
    int want;
  };
  const Case cases[] = {
      {"GET /health", "", 200},
      {"GET /health", "Bearer wrong", 200},
      {"GET /v1/models", "", 401},
      {"GET /v1/models", "Bearer ", 401},
      {"GET /v1/models", "Bearer", 401},
      {"GET /v1/models", "Bearer sk-use", 401},
      {"GET /v1/models", "Bearer sk-user ", 200},  // trailing whitespace is no part of a field value
      {"GET /v1/models", "Bearer sk-userx", 401},
      {"GET /v1/models", "Basic sk-user", 401},
      {"GET /v1/models", "bearer sk-user", 200},
      {"GET /v1/models", "Bearer sk-user", 200},
      {"GET /v1/models", "Bearer sk-admin", 200},
      {"POST /admin/stop", "", 401},
      {"POST /admin/stop", "Bearer sk-user", 403},
      {"POST /admin/stop", "Bearer sk-admin", 200},
      {"GET /nowhere", "", 401},
      {"GET /nowhere", "Bearer sk-user", 404},
      {"GET //v1/models", "", 401},
      {"GET /V1/models", "", 401},
      {"GET /v1/models.", "", 401},
      {"GET /v1/models/", "", 401},
      {"GET /v1%2Fmodels", "", 401},
      {"GET /v1/%6dodels", "", 401},
      {"GET /v1/%6dodels", "Bearer sk-user", 200},
      {"POST /v1/models", "", 401},
      {"POST /v1/models", "Bearer sk-user", 405},
      {"OPTIONS /v1/models", "", 401},
      {"GET /health/../v1/models", "", 400},
      {"GET /health/%2e%2e/v1/models", "", 400},
  };
  for (const Case& test : cases) {
    Client client(port());
    std::string fields = test.key.empty() ? "" : "Authorization: " + test.key + "\r\n";
    Reply reply = client.request(test.request_line + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
    EXPECT_EQ(reply.status, test.want) << test.request_line << " with '" << test.key << "'";
    EXPECT_EQ(reply.header("www-authenticate"), test.want == 401 ? "Bearer" : "");
  }
}

TEST_F(ServerTest, TwoAuthorizationFieldsAre400) {
  start({.api_key = "k"});
  Client client(port());
  EXPECT_EQ(client.request(get("/v1/models", "Authorization: Bearer x\r\nAuthorization: Bearer k\r\n")).status, 400);
}

TEST_F(ServerTest, AnotherHostOnLoopbackIs421) {
  start({.allowed_hosts = {"models.example"}});
  Client client(port());
  auto status = [&](std::string host) {
    return client.request("GET /health HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  EXPECT_EQ(status("evil.example"), 421);
  EXPECT_EQ(status("127.0.0.1.evil.example:80"), 421);
  EXPECT_EQ(status("localhost.evil.example"), 421);
  EXPECT_EQ(status("LOCALHOST:30000"), 200);
  EXPECT_EQ(status("127.0.0.1"), 200);
  EXPECT_EQ(status("[::1]:1"), 200);
  EXPECT_EQ(status("Models.Example:443"), 200);
}

TEST_F(ServerTest, CorsIsOffByDefault) {
  start();
  Client client(port());
  Reply simple = client.request(get("/health", "Origin: https://ui.example\r\n"));
  EXPECT_EQ(simple.status, 200);
  EXPECT_EQ(simple.header("access-control-allow-origin"), "");
  Reply preflight = client.request(
      "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://ui.example\r\nAccess-Control-Request-Method: "
      "POST\r\n\r\n");
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "");
  EXPECT_EQ(preflight.header("access-control-allow-methods"), "");
  EXPECT_EQ(client.request(post("/echo", "{}", "Origin: https://ui.example\r\n")).status, 403);
  EXPECT_EQ(client.request(post("/echo", "{}", "Origin: http://localhost\r\n")).status, 200) << "its own page";
}

TEST_F(ServerTest, CorsForListedOrigins) {
  start({.api_key = "k", .cors_origins = {"https://ui.example"}});
  Client client(port());
  Reply preflight = client.request(
      "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: https://ui.example\r\nAccess-Control-Request-Method: "
      "POST\r\n\r\n");
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.header("access-control-allow-origin"), "https://ui.example");
  EXPECT_EQ(preflight.header("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_NE(preflight.header("access-control-allow-headers").find("authorization"), std::string::npos);
  EXPECT_EQ(preflight.header("vary"), "Origin");
  Reply call = client.request(post("/echo", "{}", "Origin: https://ui.example\r\nAuthorization: Bearer k\r\n"));
  EXPECT_EQ(call.status, 200);
  EXPECT_EQ(call.header("access-control-allow-origin"), "https://ui.example");
  Reply denied = client.request(post("/echo", "{}", "Origin: https://ui.example\r\n"));
  EXPECT_EQ(denied.status, 401);
  EXPECT_EQ(denied.header("access-control-allow-origin"), "https://ui.example")
      << "the page must be able to read errors";
  EXPECT_EQ(client.request(get("/health", "Origin: https://evil.example\r\n")).header("access-control-allow-origin"),
            "");
}

TEST_F(ServerTest, ErrorBodiesComeFromTheHook) {
  start({.render_error = [](int status, std::string_view message) {
    return "<" + std::to_string(status) + " " + std::string(message.substr(0, 8)) + ">";
  }});
  Client client(port());
  Reply reply = client.request(get("/nowhere"));
  EXPECT_EQ(reply.body, "<404 no route>");
  EXPECT_EQ(reply.header("content-type"), "application/json");
  EXPECT_TRUE(client.request("nonsense\r\n\r\n").body.starts_with("<400 "));
}

TEST_F(ServerTest, DefaultErrorBodyIsJson) {
  start();
  Client client(port());
  EXPECT_EQ(client.request(get("/a\"b")).body,
            R"({"error":{"message":"no route for this path: GET /a\"b","code":404}})");
}

TEST_F(ServerTest, PortInUseIsAClearError) {
  start();
  Server second({.port = port()});
  Status status = second.start();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("127.0.0.1:" + std::to_string(port())), std::string::npos) << status.message();
}

TEST_F(ServerTest, BadHostIsAClearError) {
  Server server({.host = "no.such.host.invalid"});
  Status status = server.start();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no.such.host.invalid"), std::string::npos);
}

TEST_F(ServerTest, RestartsOnTheSamePort) {
  start();
  uint16_t same = port();
  Client client(same);
  EXPECT_EQ(client.request(get("/health", "Connection: close\r\n")).status, 200);  // leaves TIME_WAIT on this side
  server_->stop();
  for (int i = 0; i < 3; ++i) {
    start({.port = same});
    EXPECT_EQ(port(), same);
    Client again(same);
    EXPECT_EQ(again.request(get("/health")).status, 200);
    server_->stop();
  }
}

TEST_F(ServerTest, Ipv6LiteralAndLocalhost) {
  Server probe({.host = "::1"});
  if (!probe.start().ok()) GTEST_SKIP() << "this machine has no IPv6 loopback";
  probe.stop();
  start({.host = "[::1]"});
  EXPECT_EQ(server_->url(), "http://[::1]:" + std::to_string(port()));
  Client client(port(), 0, "::1");
  EXPECT_EQ(client.request(get("/health")).status, 200);
  Server named({.host = "localhost"});
  EXPECT_TRUE(named.start().ok());
}

TEST_F(ServerTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  server_ = std::make_unique<Server>(ServerOptions{});
  ResponderPtr held;
  std::atomic<bool> arrived{false};
  server_->add_route({.method = "GET", .pattern = "/slow", .handler = [&](RequestPtr, ResponderPtr out) {
                        held = out;
                        arrived = true;
                      }});
  ASSERT_TRUE(server_->start().ok());
  Client idle(port());
  Client busy(port());
  busy.send(get("/slow"));
  ASSERT_TRUE(eventually([&] { return arrived.load(); }));
  EXPECT_FALSE(server_->drain(50ms));
  EXPECT_TRUE(idle.wait_closed(2000)) << "idle connections close at once";
  EXPECT_FALSE(Client(port()).connected());
  EXPECT_TRUE(held->send({.body = "done"}));
  Reply reply = busy.read_reply();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(server_->drain(2s));
  held.reset();
  server_->stop();
}

TEST_F(ServerTest, StopWithRequestsRunningEndsThem) {
  server_ = std::make_unique<Server>(ServerOptions{});
  std::atomic<int> gone{0};
  std::vector<ResponderPtr> held;
  std::atomic<int> arrived{0};
  server_->add_route({.method = "GET", .pattern = "/slow", .handler = [&](RequestPtr, ResponderPtr out) {
                        out->on_disconnect([&] { ++gone; });
                        held.push_back(out);
                        ++arrived;
                      }});
  ASSERT_TRUE(server_->start().ok());
  Client a(port()), b(port());
  a.send(get("/slow"));
  b.send(get("/slow"));
  ASSERT_TRUE(eventually([&] { return arrived == 2; }));
  server_->stop();
  EXPECT_EQ(gone, 2);
  server_.reset();
  // Handles that outlive the server do nothing.
  EXPECT_FALSE(held[0]->send({}));
  EXPECT_TRUE(held[1]->disconnected());
  held[1]->on_disconnect([] {});
}

TEST_F(ServerTest, PostRunsOnTheIoThread) {
  start();
  std::atomic<int> ran{0};
  server_->post([&] { ++ran; });
  auto begin = std::chrono::steady_clock::now();
  server_->post_after(30ms, [&] { ran += 10; });
  server_->post_after(1h, [&] { ran += 100; });
  EXPECT_TRUE(eventually([&] { return ran == 11; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
  server_->stop();
  EXPECT_EQ(ran, 11);
}

TEST_F(ServerTest, OutOfFileDescriptorsPausesAndRecovers) {
  start();
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(Client(port()).request(get("/health")).status, 200);  // so that the server has all its descriptors
  ASSERT_TRUE(eventually([&] { return server_->stats().connections_open == 0; }));
  const int lowest_free = ::open("/dev/null", O_RDONLY);
  ::close(lowest_free);
  {
    // UBSan looks at an object through a pipe when it first meets its type: the logger is met while some are left.
    LOG_WARNING("the accept errors that follow are wanted");
    // The client takes the only descriptor there is, which leaves none for the accepting side.
    rlimit low = old;
    low.rlim_cur = static_cast<rlim_t>(lowest_free) + 1;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    Client client(port());
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(eventually([&] { return server_->stats().accept_errors >= 1; }));
    std::this_thread::sleep_for(350ms);  // the subject: how often it tries in a time
    const uint64_t errors = server_->stats().accept_errors;
    EXPECT_LE(errors, 3 + (std::chrono::steady_clock::now() - begin) / 100ms) << "accepting spins instead of pausing";
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
    EXPECT_EQ(client.request(get("/health")).status, 200);
  }
}

TEST_F(ServerTest, TheOldestIdleConnectionIsEvicted) {
  start({.limits = {.connections = 2}});
  Client first(port()), second(port());
  EXPECT_EQ(first.request(get("/health")).status, 200);
  EXPECT_EQ(second.request(get("/health")).status, 200);
  Client third(port());
  EXPECT_EQ(third.request(get("/health")).status, 200) << "waits until an idle connection is a second old";
  EXPECT_TRUE(first.wait_closed());
  EXPECT_EQ(second.request(get("/health")).status, 200);
}

TEST_F(ServerTest, HandlerThatThrowsOrForgetsIs500) {
  server_ = std::make_unique<Server>(ServerOptions{});
  server_->add_route({.method = "GET", .pattern = "/throw", .handler = [](RequestPtr, ResponderPtr) {
                        throw std::runtime_error("broken");
                      }});
  server_->add_route({.method = "GET", .pattern = "/forget", .handler = [](RequestPtr, ResponderPtr) {}});
  ASSERT_TRUE(server_->start().ok());
  Client client(port());
  Reply reply = client.request(get("/throw"));
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.body.find("broken"), std::string::npos) << "internals stay inside";
  EXPECT_EQ(client.request(get("/forget")).status, 500);
}

TEST_F(ServerTest, ResponseFieldsCannotSplitTheResponse) {
  server_ = std::make_unique<Server>(ServerOptions{});
  server_->add_route({.method = "GET", .pattern = "/x", .handler = [](RequestPtr, ResponderPtr out) {
                        Response response{.body = "{}"};
                        response.headers.add("X-Label", "a\r\nSet-Cookie: b");
                        response.headers.add("Bad Name", "v");
                        response.headers.add("Content-Length", "999");
                        out->send(std::move(response));
                      }});
  ASSERT_TRUE(server_->start().ok());
  Client client(port());
  Reply reply = client.request(get("/x"));
  EXPECT_EQ(reply.header("x-label"), "a??Set-Cookie: b");
  EXPECT_EQ(reply.header("set-cookie"), "");
  EXPECT_EQ(reply.headers.count("content-length"), 1);
  EXPECT_EQ(reply.body, "{}");
}

}  // namespace
}  // namespace millrace::http
