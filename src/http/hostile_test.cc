// What a hostile or broken client may try: smuggling, limits, slow sending, odd protocols. Each case has what must
// come back and that the bytes behind a refused request never run as a request.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "http/server.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::Client;
using testing::eventually;
using testing::get;
using testing::post;
using testing::Reply;
using namespace std::chrono_literals;

class HostileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }  // before any thread

  void start(Limits limits = {}) {
    server_ = std::make_unique<Server>(ServerOptions{.limits = limits});
    server_->add_route({.method = "POST", .pattern = "/echo", .handler = [this](RequestPtr in, ResponderPtr out) {
                          ++handled_;
                          out->send({.body = in->body});
                        }});
    server_->add_route({.method = "GET", .pattern = "/evil", .handler = [this](RequestPtr, ResponderPtr out) {
                          ++evil_;
                          out->send({.body = "evil"});
                        }});
    Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  uint16_t port() const { return server_->port(); }
  // The first status that comes back for `bytes`; the connection must then close and nothing else may have run.
  int refused(const std::string& bytes) {
    Client client(port());
    client.send(bytes);
    Reply reply = client.read_reply();
    EXPECT_TRUE(client.wait_closed()) << bytes.substr(0, 60);
    EXPECT_EQ(client.buffer(), "") << "a second answer";
    return reply.status;
  }
  // Memory of this process, server included.
  static long resident_kib() {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
      if (word == "VmRSS:") {
        long value = 0;
        status >> value;
        return value;
      }
    }
    return 0;
  }

  std::atomic<int> handled_{0};
  std::atomic<int> evil_{0};
  std::unique_ptr<Server> server_;
};

// How much this process may grow under attack. Sanitizers keep freed memory and shadows of it for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long kSanitizerKib = 32 << 10;
#else
constexpr long kSanitizerKib = 0;
#endif
constexpr long kGrowthKib = 2048 + kSanitizerKib;

const std::string kEvil = "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n";

TEST_F(HostileTest, SmugglingIsRefusedAndTheSecondRequestNeverRuns) {
  start({.linger_timeout = 20ms});
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::vector<std::string> cases = {
      head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
      head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
      head + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
      head + "Content-Length: 5, 5\r\n\r\nhello",
      head + "Content-Length: +5\r\n\r\nhello",
      head + "Content-Length: -1\r\n\r\n",
      head + "Content-Length: 0x5\r\n\r\nhello",
      head + "Content-Length: 5 5\r\n\r\nhello",
      head + "Content-Length:\r\n\r\n",
      head + "Content-Length: 99999999999999999999\r\n\r\n",
      head + "Content-Length : 5\r\n\r\nhello",
      head + " Content-Length: 5\r\n\r\nhello",
      head + "X: a\r\n b\r\n\r\n",
      head + "X: a\r\n\tTransfer-Encoding: chunked\r\n\r\n",
      head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
      head + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
      head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      head + "Transfer-Encoding: identity\r\n\r\n",
      head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      head +
          "Transfer-Encoding: \x0b"
          "chunked\r\n\r\n0\r\n\r\n",
      head + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
      "POST /echo HTTP/1.0\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "GET /evil HTTP/1.1\nHost: localhost\n\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\n\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\rX: 1\r\n\r\n",
      "GET /evil HTTP/1.1\r\r\nHost: localhost\r\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\nX: a" + std::string(1, '\0') + "b\r\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\nX: a\x01\r\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\nNo colon\r\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
      "GET /evil HTTP/1.1\r\nHost: localhost\r\nX(y): 1\r\n\r\n",
  };
  for (const std::string& bytes : cases) EXPECT_EQ(refused(bytes + kEvil), 400) << bytes;
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(evil_, 0);
}

TEST_F(HostileTest, MalformedChunks) {
  start({.body_bytes = 1000, .linger_timeout = 20ms});
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  struct Case {
    std::string chunks;
    int want;
  };
  const Case cases[] = {
      {"-2\r\nab\r\n0\r\n\r\n", 400},
      {"fffffffffffffffff\r\n", 400},
      {"ffffffffffffffff\r\n", 413},
      {"3e9\r\n", 413},
      {"\r\n", 400},
      {"g\r\n", 400},
      {"0x5\r\nhello\r\n0\r\n\r\n", 400},
      {"5 \r\nhello\r\n", 400},
      {"5\nhello\r\n0\r\n\r\n", 400},
      {"5\r\nhelloworld\r\n", 400},
      {"5\r\nhello\n0\r\n\r\n", 400},
      {"5;a\nb\r\nhello\r\n", 400},
      {"5;" + std::string(20'000, 'e'), 400},
      {"0\r\n" + std::string(20'000, 't'), 400},
      {"0\r\nX: 1\n\r\n", 400},
  };
  for (const Case& test : cases) EXPECT_EQ(refused(head + test.chunks + kEvil), test.want) << test.chunks.substr(0, 40);
  EXPECT_EQ(handled_, 0);
  EXPECT_EQ(evil_, 0);
  Client client(port());
  EXPECT_EQ(client.request(head + "3e8\r\n" + std::string(1000, 'x') + "\r\n0\r\n\r\n").status, 200)
      << "exactly the limit";
}

TEST_F(HostileTest, MillionOneByteChunksAreRefusedWithFlatMemory) {
  start({.linger_timeout = 20ms});
  std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string chunks;
  for (int i = 0; i < 1'000'000; ++i) chunks += "1\r\nx\r\n";
  auto attack = [&] {
    Client client(port());
    client.send(head);
    client.send(chunks);
    EXPECT_EQ(client.read_reply().status, 400);
  };
  for (int i = 0; i < 3; ++i) attack();
  long before = resident_kib();
  for (int i = 0; i < 20; ++i) attack();
  EXPECT_LE(resident_kib() - before, kGrowthKib);
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileTest, BodyOverTheLimitIs413BeforeItIsRead) {
  start({.body_bytes = 1000, .linger_timeout = 20ms});
  EXPECT_EQ(
      refused(
          "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1001\r\n\r\n"),
      413);
  // A client that writes the whole body before it reads still gets the answer.
  Client client(port());
  std::string big(400'000, 'x');
  client.send(post("/echo", big));
  EXPECT_EQ(client.read_reply().status, 413);
  // Other refusals do not wait for the body either, but read it away to keep the connection.
  Client keeper(port());
  EXPECT_EQ(keeper.request("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n").status, 404);
  keeper.send(std::string(900, 'x'));
  EXPECT_EQ(keeper.request(get("/evil")).status, 200);
  EXPECT_EQ(handled_, 0);
}

TEST_F(HostileTest, HeadLimits) {
  start({.linger_timeout = 20ms});
  std::string many = "GET /evil HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 99; ++i) many += "X-" + std::to_string(i) + ": 1\r\n";
  Client client(port());
  EXPECT_EQ(client.request(many + "\r\n").status, 200) << "100 fields";
  EXPECT_EQ(refused(many + "X-Last: 1\r\n\r\n"), 431);
  EXPECT_EQ(refused("GET /evil HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(65536, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(refused("GET /evil HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + std::string(1 << 20, 'a')),
            431);
  EXPECT_EQ(refused("GET /" + std::string(8192, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n"), 414);
  EXPECT_EQ(refused("GET /" + std::string(100'000, 'a')), 414);
  EXPECT_EQ(client.request("GET /" + std::string(8191, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 404);
}

TEST_F(HostileTest, EndlessHeaderStaysFlat) {
  start({.linger_timeout = 50ms});
  Client client(port());
  client.send("GET /evil HTTP/1.1\r\nHost: localhost\r\nX: ");
  long before = resident_kib();
  std::string block(1 << 20, 'a');
  for (int i = 0; i < 200 && client.send(block); ++i) {
  }
  EXPECT_LE(resident_kib() - before, kGrowthKib);
}

TEST_F(HostileTest, HostAndTargetForms) {
  start({.linger_timeout = 20ms});
  auto line = [&](std::string target, std::string fields = "Host: localhost\r\n") {
    return refused("GET " + target + " HTTP/1.1\r\n" + fields + "\r\n");
  };
  EXPECT_EQ(line("/evil", ""), 400) << "no Host";
  EXPECT_EQ(line("/evil", "Host: localhost\r\nHost: localhost\r\n"), 400);
  for (std::string host : {"", "a/b", "a?b", "a#b", "a@b", "a b", "a:b", "a:", ":80", "[::1", "[::1]x", "[]",
                           "a:123456", "a,b", "a\\b", "%61"}) {
    EXPECT_EQ(line("/evil", "Host: " + host + "\r\n"), 400) << host;
  }
  for (std::string target : {"/%00",
                             "/a%",
                             "/a%2",
                             "/a%zz",
                             "/../evil",
                             "/a/../evil",
                             "/a/..%2fevil",
                             "/%2e%2e/evil",
                             "/./evil",
                             "/a/%2E/evil",
                             "/%2e",
                             "/a%2f..%2fb",
                             "/a%5c..%5cb",
                             "/\xff",
                             "/%ff",
                             "/%c0%af",
                             "evil",
                             "*",
                             "http://localhost:x/evil",
                             "http://user@localhost/evil",
                             "ftp://localhost/evil",
                             "/a#b",
                             "/evil?x=%0",
                             "/evil?%00",
                             "/a\tb",
                             "/a b"}) {
    EXPECT_EQ(line(target), 400) << target;
  }
  EXPECT_EQ(evil_, 0);
  Client client(port());
  EXPECT_EQ(client.request(get("//evil")).status, 404);
  EXPECT_EQ(client.request(get("/evil?a/../b")).status, 200) << "dots in a query are data";
  EXPECT_EQ(client.request(get("/%65vil")).status, 200);
  EXPECT_EQ(client.request(get("http://localhost/evil")).status, 200) << "RFC 9112, 3.2.2";
  EXPECT_EQ(client.request(get("http://rebound.example/evil")).status, 421) << "this host counts, not the field's";
}

TEST_F(HostileTest, OtherProtocols) {
  start({.linger_timeout = 20ms});
  EXPECT_EQ(refused("GET /evil\r\n\r\n"), 400) << "HTTP/0.9";
  EXPECT_EQ(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(refused("GET /evil HTTP/1.2\r\nHost: localhost\r\n\r\n"), 505);
  EXPECT_EQ(refused("GET /evil HTTP/11\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET /evil http/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET  /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET /evil HTTP/1.1 \r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused(" GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused("G@T /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(refused(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)), 400) << "TLS hello";
  EXPECT_EQ(refused("\r\n\r\n\r\n"), 400);
  EXPECT_EQ(refused("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  Client client(port());
  EXPECT_EQ(client.request("\r\n" + get("/evil")).status, 200) << "one empty line before a request is tolerated";
}

TEST_F(HostileTest, SlowSendersAreCutOffAndOthersServed) {
  start({.header_timeout = 2s, .body_idle_timeout = 1s, .keep_alive_timeout = 1s, .linger_timeout = 20ms});
  // A client that gets no processor between its connection and its request is cut off too, and tries again.
  std::optional<Client> idle;
  const auto served = [this](std::optional<Client>& client) {
    client.emplace(port());
    return client->request(get("/evil")).status == 200;
  };
  EXPECT_TRUE(eventually([&] { return served(idle); }));
  Client head(port()), body(port()), fresh(port());
  body.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\nabc");
  std::atomic<bool> done{false};
  std::thread drip([&] {  // a byte now and then does not extend the time for the head
    for (char c : get("/evil", "X: " + std::string(1000, 'a'))) {
      if (done || !head.send(std::string_view(&c, 1))) break;
      std::this_thread::sleep_for(20ms);
    }
  });
  for (int i = 0; i < 20; ++i) {
    std::optional<Client> healthy;
    EXPECT_TRUE(eventually([&] { return served(healthy); }));
  }
  EXPECT_EQ(body.read_reply().status, 408);
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_TRUE(idle->wait_closed());
  EXPECT_EQ(idle->buffer(), "") << "an idle connection closes silently";
  EXPECT_TRUE(fresh.wait_closed());
  EXPECT_EQ(fresh.buffer(), "");
  done = true;
  drip.join();
}

TEST_F(HostileTest, ADrippedBodyHasATotalTimeLimit) {
  start({.body_idle_timeout = 1s, .body_total_timeout = 200ms, .linger_timeout = 20ms});
  Client client(port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
  bool open = true;
  for (int i = 0; i < 100 && open; ++i) {
    open = client.send("x") && !client.receive(10);
  }
  EXPECT_EQ(client.read_reply().status, 408);
}

TEST_F(HostileTest, ManyIdleConnectionsCostLittle) {
  start();
  long before = resident_kib();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 400; ++i) clients.push_back(std::make_unique<Client>(port()));
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == 400; }));
  for (auto& client : clients) client->send("GET /e");
  Client healthy(port());
  EXPECT_EQ(healthy.request(get("/evil")).status, 200);
  EXPECT_LE(resident_kib() - before, 400 * 24 + kSanitizerKib) << "over 24 KiB a connection";
}

TEST_F(HostileTest, ConnectionsThatEndInsideARequest) {
  start();
  for (std::string part :
       {"G", "GET /evil HTTP/1.1\r\nHost: localhost\r\n",
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\nabc"}) {
    Client client(port());
    client.send(part);
    client.half_close();
    EXPECT_EQ(client.read_reply().status, 400);
    EXPECT_TRUE(client.wait_closed());
    Client other(port());
    other.send(part);
    other.reset();
  }
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == 0; }));
  EXPECT_EQ(handled_, 0);
}

// A child process that inherits a socket would keep the connection open after the server closed it.
TEST_F(HostileTest, NoSocketOfTheServerIsInheritedByChildPrograms) {
  start();
  Client client(port());
  client.send(post("/echo", "{}"));
  ASSERT_EQ(client.read_reply().status, 200);
  int seen = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || ntohs(address.sin_port) != port()) continue;
    ++seen;
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0) << "descriptor " << fd;
  }
  EXPECT_GE(seen, 2) << "wanted the listening socket and the connection";
}

TEST_F(HostileTest, BodiesOfAllRequestsTogetherAreBounded) {
  start({.bodies_bytes = 1000});
  const std::string half(800, 'a');
  Client slow(port());
  const std::string request = post("/echo", half);
  ASSERT_TRUE(slow.send(request.substr(0, request.size() - 1)));
  Reply reply;  // 200 until the server has read the half
  ASSERT_TRUE(eventually([&] {
    Client refused(port());
    reply = refused.request(post("/echo", std::string(500, 'b')));
    return reply.status != 200;
  }));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.header("retry-after"), "1");
  ASSERT_TRUE(slow.send("a"));
  EXPECT_EQ(slow.read_reply().body, half);
  // What was counted is released, also for the refused one.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Client(port()).request(post("/echo", std::string(900, 'c'))).status, 200);
}

}  // namespace
}  // namespace millrace::http
