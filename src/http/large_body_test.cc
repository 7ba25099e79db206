// Handlers of large bodies: they hold up no other connection, keep the order of their own, and end with the server.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

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

constexpr auto kHandlerTimeout = 300s;  // longer than a client waits
const std::string kLarge(100'000, 'a');
const std::string kSmall = "small";

// POST /held answers when the test opens it, and only then. GET /now answers at once, POST /echo too, with the length.
// GET /stream hands its responder to the test.
class LargeBodyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }  // before any thread

  void start(Limits limits = {}) {
    server_ = std::make_unique<Server>(ServerOptions{.limits = limits});
    server_->add_route({.method = "POST",
                        .pattern = "/held",
                        .handler = [this, held = captured_](RequestPtr in, const ResponderPtr& out) {
                          out->on_disconnect([this] { note_disconnect(); });
                          ++running_;
                          opened_.wait_for(kHandlerTimeout);
                          ++*held;
                          out->send({.body = std::to_string(in->body.size())});
                        }});
    server_->add_route({.method = "POST", .pattern = "/echo", .handler = [this](RequestPtr in, ResponderPtr out) {
                          handler_thread_ = std::this_thread::get_id();
                          out->send({.body = std::to_string(in->body.size())});
                        }});
    server_->add_route({.method = "POST", .pattern = "/throw", .handler = [](auto, auto) {
                          throw std::runtime_error("a handler that fails");
                        }});
    server_->add_route({.method = "POST", .pattern = "/forget", .handler = [](auto, auto) {}});
    server_->add_route({.method = "GET", .pattern = "/now", .handler = [](auto, auto out) { out->send({}); }});
    server_->add_route({.method = "GET", .pattern = "/stream", .handler = [this](RequestPtr, ResponderPtr out) {
                          std::lock_guard lock(mutex_);
                          stream_ = std::move(out);
                        }});
    Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::promise<std::thread::id> id;
    server_->post([&id] { id.set_value(std::this_thread::get_id()); });
    io_thread_ = id.get_future().get();
  }
  void TearDown() override { open(); }

  void open() {
    if (!std::exchange(open_, true)) gate_.set_value();
  }
  void note_disconnect() {
    EXPECT_EQ(std::this_thread::get_id(), io_thread_);
    ++disconnects_;
  }
  // Sends a request to /held; it runs when this returns.
  void occupy(Client& client) {
    ASSERT_TRUE(client.send(post("/held", kLarge)));
    ASSERT_TRUE(eventually([&] { return running_ == 1; }));
  }
  uint64_t active() const { return server_->stats().requests_active; }
  uint16_t port() const { return server_->port(); }

  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future().share();
  bool open_ = false;
  std::shared_ptr<std::atomic<int>> captured_ = std::make_shared<std::atomic<int>>(0);  // handlers of /held that ended
  std::atomic<int> running_{0};                                                         // ... that began
  std::atomic<int> disconnects_{0};
  std::atomic<std::thread::id> io_thread_, handler_thread_;
  std::mutex mutex_;
  ResponderPtr stream_;
  std::unique_ptr<Server> server_;  // last: its threads use the rest
};

TEST_F(LargeBodyTest, OtherRequestsAndStreamsGoOnWhileOneIsHandled) {
  start();
  Client reader(port());
  reader.send(get("/stream"));
  ASSERT_TRUE(eventually([&] {
    std::lock_guard lock(mutex_);
    return stream_ != nullptr;
  }));
  ASSERT_TRUE(stream_->start_sse());
  Client large(port());
  occupy(large);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(Client(port()).request(get("/now")).status, 200);
    ASSERT_EQ(Client(port()).request(post("/echo", kSmall)).body, "5");
    const std::string event = "data: " + std::to_string(i) + "\n\n";
    ASSERT_TRUE(stream_->write(event));
    ASSERT_TRUE(reader.read_until(event));
  }
  EXPECT_EQ(*captured_, 0) << "the large body was handled before the test allowed it";
  open();
  EXPECT_EQ(large.read_reply().body, std::to_string(kLarge.size()));
  stream_->end();
  EXPECT_TRUE(reader.read_reply().complete);
}

TEST_F(LargeBodyTest, UpToTheLimitAHandlerRunsOnTheIoThread) {
  start({.inline_body_bytes = 1000});
  Client client(port());
  const std::string limit(1000, 'a');
  EXPECT_EQ(client.request(post("/echo", limit)).body, "1000");
  EXPECT_EQ(handler_thread_, io_thread_);
  EXPECT_EQ(client.request(post("/echo", limit + "a")).body, "1001");
  EXPECT_NE(handler_thread_, io_thread_);
  // A length that is known at the end of the body alone.
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(client.request(head + "3e8\r\n" + limit + "\r\n0\r\n\r\n").body, "1000");
  EXPECT_EQ(handler_thread_, io_thread_);
  EXPECT_EQ(client.request(head + "3e8\r\n" + limit + "\r\n1\r\na\r\n0\r\n\r\n").body, "1001");
  EXPECT_NE(handler_thread_, io_thread_);
}

TEST_F(LargeBodyTest, PipelinedRequestsAreAnsweredOneAfterTheOther) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(post("/held", kLarge) + post("/echo", kSmall) + post("/echo", kLarge) + get("/now")));
  ASSERT_TRUE(eventually([&] { return running_ == 1; }));
  EXPECT_FALSE(client.receive(50)) << "an answer overtook the one before it";
  EXPECT_EQ(handler_thread_.load(), std::thread::id()) << "a request ran before the one before it was answered";
  open();
  EXPECT_EQ(client.read_reply().body, "100000");
  EXPECT_EQ(client.read_reply().body, "5");
  EXPECT_EQ(client.read_reply().body, "100000");
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.buffer(), "");
}

TEST_F(LargeBodyTest, OneWhoseClientLeftWhileItWaitedIsDropped) {
  start();
  Client first(port());
  occupy(first);
  {
    Client left(port()), reset(port());
    ASSERT_TRUE(left.send(post("/held", kLarge)));
    ASSERT_TRUE(reset.send(post("/held", kLarge)));
    ASSERT_TRUE(eventually([&] { return active() == 3; }));
    reset.reset();
  }
  ASSERT_TRUE(eventually([&] { return server_->stats().disconnects == 2 && active() == 1; }));
  open();
  EXPECT_EQ(first.read_reply().status, 200);
  EXPECT_EQ(Client(port()).request(post("/held", kLarge)).status, 200);
  EXPECT_EQ(running_, 2) << "a handler ran for a client that had left";
  EXPECT_EQ(disconnects_, 0);
  EXPECT_EQ(server_->stats().responses_5xx, 0u);
}

TEST_F(LargeBodyTest, AClientThatLeavesWhileItsHandlerRunsIsReportedOnce) {
  start();
  {
    Client client(port());
    occupy(client);
  }
  EXPECT_TRUE(eventually([&] { return disconnects_ == 1; }));
  open();
  EXPECT_TRUE(eventually([&] { return *captured_ == 1; }));
  EXPECT_EQ(Client(port()).request(post("/echo", kLarge)).status, 200);
  EXPECT_EQ(disconnects_, 1);
}

TEST_F(LargeBodyTest, StopWaitsForTheRunningHandlerAndDropsTheWaiting) {
  start();
  Client running(port()), waiting(port());
  occupy(running);
  ASSERT_TRUE(waiting.send(post("/held", kLarge)));
  ASSERT_TRUE(eventually([&] { return active() == 2; }));
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  EXPECT_EQ(stopped.wait_for(100ms), std::future_status::timeout) << "stop() returned while a handler ran";
  open();
  ASSERT_EQ(stopped.wait_for(120s), std::future_status::ready);
  EXPECT_EQ(*captured_, 1);
  EXPECT_EQ(running_, 1) << "a handler began after stop()";
  EXPECT_TRUE(waiting.wait_closed());
  EXPECT_EQ(waiting.buffer(), "");
  server_.reset();
  EXPECT_EQ(captured_.use_count(), 1);
}

// What it asked for, such as text from an engine, must be cancelled.
TEST_F(LargeBodyTest, StopReportsTheDisconnectOfAHandlerThatRunsMeanwhile) {
  start();
  server_->stop();
  server_ = std::make_unique<Server>(ServerOptions{});
  ResponderPtr kept;
  server_->add_route({.method = "POST", .pattern = "/late", .handler = [&](RequestPtr, ResponderPtr out) {
                        ++running_;
                        opened_.wait_for(kHandlerTimeout);
                        out->on_disconnect([this] { ++disconnects_; });
                        kept = std::move(out);
                      }});
  ASSERT_TRUE(server_->start().ok());
  Client client(port());
  ASSERT_TRUE(client.send(post("/late", kLarge)));
  ASSERT_TRUE(eventually([&] { return running_ == 1; }));
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  // Under way: a server that drains closes a connection before its first request.
  EXPECT_TRUE(eventually([&] { return Client(port()).request(get("/none")).status == 0; }));
  open();
  stopped.get();
  EXPECT_EQ(disconnects_, 1);
  EXPECT_FALSE(kept->send({}));
}

TEST_F(LargeBodyTest, DrainWaitsForThoseThatRunAndThoseThatWait) {
  start();
  Client running(port()), waiting(port());
  occupy(running);
  ASSERT_TRUE(waiting.send(post("/held", kLarge)));
  ASSERT_TRUE(eventually([&] { return active() == 2; }));
  EXPECT_FALSE(server_->drain(50ms));
  auto drained = std::async(std::launch::async, [&] { return server_->drain(120s); });
  open();
  EXPECT_TRUE(drained.get());
  EXPECT_EQ(running.read_reply().header("connection"), "close");
  EXPECT_EQ(waiting.read_reply().header("connection"), "close");
  EXPECT_EQ(*captured_, 2);
}

TEST_F(LargeBodyTest, WaitingBodiesCountUntilTheirHandlersHaveReturned) {
  start({.bodies_bytes = 350'000});
  Client running(port()), waiting(port());
  occupy(running);
  ASSERT_TRUE(waiting.send(post("/held", kLarge)));
  {
    Client left(port());  // what it sent is in memory until its turn
    ASSERT_TRUE(left.send(post("/held", kLarge)));
    ASSERT_TRUE(eventually([&] { return active() == 3; }));
  }
  ASSERT_TRUE(eventually([&] { return active() == 2; }));
  EXPECT_EQ(Client(port()).request(post("/echo", kLarge)).status, 503);
  EXPECT_EQ(Client(port()).request(post("/echo", kSmall)).status, 200);
  open();
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(waiting.read_reply().status, 200);
  // All of it is free again. A handler may return a moment after its answer has arrived.
  const std::string all(350'000, 'a');
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(eventually([&] { return Client(port()).request(post("/echo", all)).status == 200; }));
  }
}

TEST_F(LargeBodyTest, AHandlerThatFailsOrForgetsToAnswerIsA500) {
  start();
  Client client(port());
  EXPECT_EQ(client.request(post("/throw", kLarge)).status, 500);
  EXPECT_EQ(client.request(post("/forget", kLarge)).status, 500);
  EXPECT_EQ(client.request(post("/echo", kLarge)).status, 200);
}

TEST_F(LargeBodyTest, ManyClientsOfBothSizes) {
  start({.inline_body_bytes = 1000});
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  clients.reserve(8);
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < 30; ++k) {
        const std::string body(static_cast<size_t>(i % 2 ? 5000 : 500), 'a');
        Client client(port());
        client.send(post("/echo", body));
        if (k % 5 == 4) continue;  // leaves
        if (client.read_reply().body != std::to_string(body.size())) ++wrong;
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  server_->stop();
}

}  // namespace
}  // namespace millrace::http
