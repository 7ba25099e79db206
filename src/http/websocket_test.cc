// WebSockets over a real server, driven by Beast's client: messages, streams, limits, ends.
#include "http/websocket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "http/server.h"
#include "http/testing/test_client.h"
#include "http/testing/websocket_client.h"

namespace millrace::http {
namespace {

using testing::WebSocketClient;

// Answers "stream N" with N lines, "echo TEXT" with TEXT, "close" by closing, and notes what happens to it.
class TestHandler : public WebSocketHandler {
 public:
  struct Seen {
    std::mutex mutex;
    std::condition_variable changed;
    int opened = 0, closed = 0, drained = 0, ended = 0, gone = 0, waiting = 0, released = 0;
    int misplaced = 0;  // on_message() behind on_close() or beside it
    ResponderPtr responder;
    void note(int& count) {
      std::lock_guard lock(mutex);
      ++count;
      changed.notify_all();
    }
    void wait(const int& count, int wanted) {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(changed.wait_for(lock, std::chrono::minutes(2), [&] { return count >= wanted; }));
    }
  };

  TestHandler(std::shared_ptr<Seen> seen, std::shared_ptr<WebSocket> socket, bool streams)
      : seen_(std::move(seen)), socket_(std::move(socket)), streams_(streams) {}

  void on_open() override {
    if (streams_) on_message("hold");
    seen_->note(seen_->opened);
  }
  void on_message(std::string text) override {
    if (closed_) seen_->note(seen_->misplaced);
    if (text.starts_with("wait ")) {
      in_message_ = true;
      seen_->note(seen_->waiting);
      seen_->wait(seen_->released, 1);
      in_message_ = false;
      return socket_->send("waited");
    }
    if (text == "heavy") weight_ = std::size_t{1} << 20;
    if (text == "heavy") return socket_->send("heavy");
    if (text == "close") return socket_->close(CloseCode::kNormal, "as asked");
    if (text == "throw") throw std::runtime_error("as asked");
    if (text.starts_with("echo ")) return socket_->send(text.substr(5));
    if (text.starts_with("size ")) return socket_->send(std::to_string(text.size()));
    auto responder = socket_->open_stream({"GET", "/ws", "r", ""}, [seen = seen_] { seen->note(seen->ended); });
    responder->on_disconnect([seen = seen_] { seen->note(seen->gone); });
    if (text == "complete") return static_cast<void>(responder->send({.status = 429, .body = "a\nb\n"}));
    if (text == "drop") return;
    responder->start_stream("text");
    {
      std::lock_guard lock(seen_->mutex);
      seen_->responder = responder;
    }
    if (text == "hold") return;
    for (int i = 0; i < std::stoi(text); ++i) responder->write("line " + std::to_string(i) + "\n");
    responder->end("last\n");
  }
  std::size_t weight() const override { return weight_; }
  void on_drain() override {
    seen_->note(seen_->drained);
    socket_->close(CloseCode::kStopping, "drained");
  }
  void on_close() override {
    if (in_message_) seen_->note(seen_->misplaced);
    closed_ = true;
    seen_->note(seen_->closed);
    if (!in_message_) socket_.reset();
  }

 private:
  const std::shared_ptr<Seen> seen_;
  std::shared_ptr<WebSocket> socket_;
  const bool streams_;
  std::atomic<bool> in_message_{false}, closed_{false};
  std::atomic<std::size_t> weight_{0};
};

class WebSocketTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }

  struct Client : WebSocketClient {
    explicit Client(uint16_t port, const std::string& query = "", const Edit& edit = {})
        : WebSocketClient(port, "/ws" + query, edit) {}
  };

  void start(Limits limits = {}, std::string key = "") {
    ServerOptions options;
    options.limits = limits;
    options.api_key = std::move(key);
    server = std::make_unique<Server>(std::move(options));
    server->add_route({.method = "GET",
                       .pattern = "/ws",
                       .same_origin = true,
                       .websocket = [seen = seen](const Request& request, auto socket) -> WebSocketAnswer {
                         if (request.query == "full") return Response{.status = 503, .body = "full"};
                         return std::make_shared<TestHandler>(seen, std::move(socket), request.query == "stream");
                       },
                       .websocket_protocol = "realtime"});
    ASSERT_TRUE(server->start().ok());
  }
  void TearDown() override {
    if (server) server->stop();
  }
  // The status line, and what follows it.
  std::string raw(const std::string& head) {
    testing::Client client(server->port());
    client.send(head);
    client.read_until("\r\n\r\n");
    if (client.buffer().find(" 101 ") != std::string::npos) return client.buffer();
    const testing::Reply reply = client.read_reply();
    return reply.status_line + "\n" + reply.body;
  }
  // The io thread has come by what was sent before on other connections.
  static void echo_often(Client& client) {
    for (int i = 0; i < 50; ++i) {
      client.send("echo x");
      EXPECT_EQ(client.read(), "x");
    }
  }
  // To the stream whose client has left.
  void write_until_gone() {
    while (seen->responder->write("more\n")) std::this_thread::yield();
    seen->wait(seen->gone, 1);
  }
  static std::string head(const std::string& more, const std::string& target = "/ws") {
    return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + more + "Connection: close, Upgrade\r\n\r\n";
  }

  std::shared_ptr<TestHandler::Seen> seen = std::make_shared<TestHandler::Seen>();
  std::unique_ptr<Server> server;
};

const std::string kKey = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

TEST_F(WebSocketTest, MessagesGoBothWaysInTheirSequence) {
  start();
  Client client(server->port());
  ASSERT_TRUE(client.open());
  for (int i = 0; i < 50; ++i) client.send("echo " + std::to_string(i));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read(), std::to_string(i));
  EXPECT_EQ(server->stats().requests_active, 1u);
  client.close();
  seen->wait(seen->closed, 1);
}

TEST_F(WebSocketTest, ALargeMessageIsHandledAsideAndStillInItsTurn) {
  start();
  Client client(server->port());
  const std::string large = "size " + std::string(3 << 20, 'x');
  client.send(large);
  client.send("echo behind");
  EXPECT_EQ(client.read(), std::to_string(large.size()));
  EXPECT_EQ(client.read(), "behind");
}

TEST_F(WebSocketTest, AHandlerThatGoesThroughMuchIsCalledAside) {
  start();
  Client heavy(server->port()), other(server->port());
  heavy.send("heavy");
  EXPECT_EQ(heavy.read(), "heavy");
  heavy.send("wait x");
  seen->wait(seen->waiting, 1);
  echo_often(other);  // the io thread waits for nothing
  seen->note(seen->released);
  EXPECT_EQ(heavy.read(), "waited");
}

TEST_F(WebSocketTest, NoMessageComesBehindTheClose) {
  Limits limits;
  limits.inline_body_bytes = 100;
  start(limits);
  const std::string pad(200, 'x');
  Client busy(server->port()), leaves(server->port()), other(server->port());
  leaves.send("hold");
  leaves.send("echo x");
  EXPECT_EQ(leaves.read(), "x");
  busy.send("wait " + pad);
  seen->wait(seen->waiting, 1);
  leaves.send("size " + pad);  // behind it on the bodies thread
  echo_often(other);
  leaves.drop();
  write_until_gone();
  seen->wait(seen->closed, 1);
  seen->note(seen->released);
  EXPECT_EQ(busy.read(), "waited");
  busy.send("size " + pad);
  EXPECT_EQ(busy.read(), "205");
  EXPECT_EQ(seen->misplaced, 0);
}

TEST_F(WebSocketTest, TheCloseWaitsForTheMessageUnderWay) {
  Limits limits;
  limits.inline_body_bytes = 100;
  start(limits);
  Client leaves(server->port()), other(server->port());
  leaves.send("hold");
  leaves.send("wait " + std::string(200, 'x'));
  seen->wait(seen->waiting, 1);
  leaves.drop();
  write_until_gone();
  echo_often(other);  // the io thread waits for nothing
  seen->note(seen->released);
  seen->wait(seen->closed, 1);
  EXPECT_EQ(seen->misplaced, 0);
}

TEST_F(WebSocketTest, EachLineOfAStreamIsAMessage) {
  start();
  Client client(server->port());
  client.send("3");
  for (const char* wanted : {"line 0", "line 1", "line 2", "last"}) EXPECT_EQ(client.read(), wanted);
  seen->wait(seen->ended, 1);
  client.send("complete");
  EXPECT_EQ(client.read(), "a");
  EXPECT_EQ(client.read(), "b");
  seen->wait(seen->ended, 2);
  client.send("drop");
  seen->wait(seen->ended, 3);
  client.send("echo still here");
  EXPECT_EQ(client.read(), "still here");
  EXPECT_EQ(seen->gone, 0);
}

TEST_F(WebSocketTest, AClientThatLeavesIsGoneForItsStream) {
  start();
  {
    Client client(server->port());
    client.send("hold");
    client.send("echo x");
    EXPECT_EQ(client.read(), "x");
  }
  seen->wait(seen->gone, 1);
  seen->wait(seen->closed, 1);
  EXPECT_TRUE(seen->responder->disconnected());
  EXPECT_FALSE(seen->responder->write("more\n"));
  EXPECT_EQ(server->stats().disconnects, 1u);
}

TEST_F(WebSocketTest, AReaderThatIsTooSlowIsCutOff) {
  Limits limits;
  limits.max_pending_bytes = 1 << 20;
  start(limits);
  Client client(server->port());
  client.send("hold");
  client.send("echo x");
  EXPECT_EQ(client.read(), "x");
  const std::string line = std::string(100'000, 'y') + "\n";
  while (seen->responder->write(line)) std::this_thread::yield();
  seen->wait(seen->gone, 1);
  EXPECT_EQ(server->stats().slow_readers, 1u);
}

TEST_F(WebSocketTest, AMessageOverTheLimitClosesWith1009) {
  Limits limits;
  limits.websocket_message_bytes = 1000;
  start(limits);
  Client client(server->port());
  client.send("size " + std::string(995, 'x'));
  EXPECT_EQ(client.read(), "1000");
  client.send(std::string(1001, 'x'));
  EXPECT_EQ(client.read(), "");
  EXPECT_EQ(client.close_code(), 1009);
  seen->wait(seen->closed, 1);
}

TEST_F(WebSocketTest, WhatIsNoTextIsRefused) {
  start();
  Client binary(server->port());
  binary.send_binary("echo x");
  EXPECT_EQ(binary.read(), "");
  EXPECT_EQ(binary.close_code(), 1003);
  Client broken(server->port());
  broken.send("echo \xFF\xFE");
  EXPECT_EQ(broken.read(), "");
  EXPECT_EQ(broken.close_code(), 1007);
  seen->wait(seen->closed, 2);
}

TEST_F(WebSocketTest, AnIdleOneIsClosedAndOneThatStreamsIsNot) {
  Limits limits;
  limits.websocket_idle_timeout = std::chrono::milliseconds(1);
  start(limits);
  Client streams(server->port(), "?stream"), idle(server->port());
  EXPECT_EQ(idle.read(), "");
  EXPECT_EQ(idle.close_code(), 1001);
  EXPECT_TRUE(seen->responder->write("still\n"));
  EXPECT_EQ(streams.read(), "still");
}

TEST_F(WebSocketTest, TheHandlerClosesAndSoDoesADrainingServer) {
  start();
  Client client(server->port()), other(server->port());
  client.send("throw");
  client.send("close");
  EXPECT_EQ(client.read(), "");
  EXPECT_EQ(client.close_code(), 1000);
  std::thread drain([&] { EXPECT_TRUE(server->drain(std::chrono::minutes(2))); });
  EXPECT_EQ(other.read(), "");
  EXPECT_EQ(other.close_code(), 1001);
  drain.join();
  EXPECT_EQ(seen->drained, 1);
}

TEST_F(WebSocketTest, AStopCutsWhatIsOpen) {
  start();
  Client client(server->port());
  client.send("hold");
  client.send("echo x");
  EXPECT_EQ(client.read(), "x");
  server->stop();
  EXPECT_EQ(client.read(), "");
  EXPECT_EQ(seen->gone, 1);
  EXPECT_EQ(seen->closed, 1);
}

TEST_F(WebSocketTest, ASubprotocolIsChosenAndMayHoldTheKey) {
  start({}, "secret");
  const auto with = [](const char* name, const char* value) {
    return [name, value](boost::beast::websocket::request_type& request) { request.set(name, value); };
  };
  EXPECT_EQ(testing::handshake_status(server->port(), "/ws"), 401);
  constexpr const char* kOffer = "Sec-WebSocket-Protocol";
  const std::string wrong = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.other\r\n";
  EXPECT_EQ(testing::handshake_status(server->port(), "/ws", wrong), 401);
  Client right(server->port(), "", with(kOffer, "realtime, openai-insecure-api-key.secret"));
  ASSERT_TRUE(right.open());
  EXPECT_EQ(right.header(kOffer), "realtime");
  EXPECT_TRUE(Client(server->port(), "", with("Authorization", "Bearer secret")).open());
}

TEST_F(WebSocketTest, WhatIsNoHandshakeIsRefusedWithAReason) {
  start();
  const std::string version = "Sec-WebSocket-Version: 13\r\n", upgrade = "Upgrade: websocket\r\n";
  EXPECT_NE(raw("GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n").find("426 Upgrade Required"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + kKey)).find("426 Upgrade Required"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + kKey + "Sec-WebSocket-Version: 8\r\n")).find("wanted 13"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + version)).find("400 Bad Request"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + version + kKey + "Content-Type: application/json\r\nContent-Length: 1\r\n") + "x")
                .find("400 Bad"),
            std::string::npos);
  EXPECT_NE(raw(head(upgrade + version + kKey) + "early").find("400 Bad Request"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + version + kKey, "/ws?full")).find("503 Service"), std::string::npos);
  EXPECT_NE(raw(head(upgrade + version + kKey + "Origin: https://other.example\r\n")).find("403 Forbidden"),
            std::string::npos);
  EXPECT_NE(raw(head(upgrade + version + kKey + "Origin: http://localhost\r\n")).find("101 Switching"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::http
