// Streams and absent clients: SSE framing, coalescing, disconnects, slow readers, many streams at once.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "http/limits.h"
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

// GET /stream hands its responder to the test; GET /now answers at once.
class StreamTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }  // before any thread

  void start(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(std::move(options));
    server_->add_route({.method = "GET", .pattern = "/stream", .handler = [this](RequestPtr, ResponderPtr out) {
                          out->on_disconnect([this] {
                            EXPECT_NE(std::this_thread::get_id(), test_thread_);
                            ++gone_;
                          });
                          std::lock_guard lock(mutex_);
                          held_.push_back(std::move(out));
                        }});
    server_->add_route({.method = "GET", .pattern = "/now", .handler = [](RequestPtr, ResponderPtr out) {
                          out->send({.body = "now"});
                        }});
    Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  ResponderPtr take() {
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex_);
      return !held_.empty();
    }));
    std::lock_guard lock(mutex_);
    if (held_.empty()) return nullptr;
    ResponderPtr out = held_.front();
    held_.pop_front();
    return out;
  }
  uint16_t port() const { return server_->port(); }

  std::thread::id test_thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::deque<ResponderPtr> held_;
  std::atomic<int> gone_{0};
  std::unique_ptr<Server> server_;  // last: its threads use the rest
};

TEST_F(StreamTest, ASilentStreamOfEventsGetsComments) {
  ServerOptions options;
  options.limits.event_stream_ping = 5ms;
  start(std::move(options));
  Client events(port()), bytes(port());
  ASSERT_TRUE(events.send(get("/stream")));
  const ResponderPtr out = take();
  out->start_sse();
  ASSERT_TRUE(events.read_until(": ping\n\n"));
  out->write("data: 1\n\n");
  ASSERT_TRUE(events.read_until("data: 1\n\n"));
  events.buffer().clear();
  ASSERT_TRUE(events.read_until(": ping\n\n"));
  // A stream of something else is what was written.
  ASSERT_TRUE(bytes.send(get("/stream")));
  const ResponderPtr raw = take();
  raw->start_stream("audio/pcm");
  events.buffer().clear();
  ASSERT_TRUE(events.read_until(": ping\n\n"));
  raw->end("sound");
  EXPECT_EQ(bytes.read_reply().body, "sound");
}

TEST_F(StreamTest, SseFraming) {
  start();
  Client client(port());
  client.send(get("/stream"));
  ResponderPtr out = take();
  EXPECT_TRUE(out->start_sse({{"X-More", "1"}}));
  EXPECT_FALSE(out->start_sse());
  EXPECT_FALSE(out->send({}));
  ASSERT_TRUE(client.read_until("\r\n\r\n")) << "the head goes out before the first event";
  EXPECT_TRUE(out->write("data: a\n\n"));
  ASSERT_TRUE(client.read_until("data: a\n\n")) << "an event goes out before the next";
  EXPECT_TRUE(out->write("data: b\n\n"));
  out->end();
  EXPECT_FALSE(out->write("data: c\n\n"));
  out->end();
  Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.header("cache-control"), "no-cache");
  EXPECT_EQ(reply.header("x-accel-buffering"), "no");
  EXPECT_EQ(reply.header("x-more"), "1");
  EXPECT_EQ(reply.header("transfer-encoding"), "chunked");
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "data: a\n\ndata: b\n\n");
  EXPECT_EQ(client.request(get("/now")).body, "now") << "the connection lives on";
  client.close();
  out.reset();
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == 0; }));
  EXPECT_EQ(gone_, 0);
}

TEST_F(StreamTest, BytesOfAnotherContentType) {
  start();
  Client client(port());
  client.send(get("/stream"));
  ResponderPtr out = take();
  EXPECT_TRUE(out->start_stream("audio/wav", {{"X-More", "1"}}));
  EXPECT_FALSE(out->start_sse());
  const std::string bytes("\0\r\n0\r\n\r\n", 8);
  EXPECT_TRUE(out->write(bytes));
  ASSERT_TRUE(client.read_until(bytes)) << "bytes go out before the next";
  out->end("\xFF");
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-type"), "audio/wav");
  EXPECT_EQ(reply.header("cache-control"), "no-cache");
  EXPECT_EQ(reply.header("x-more"), "1");
  EXPECT_EQ(reply.header("transfer-encoding"), "chunked");
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, bytes + "\xFF");
}

TEST_F(StreamTest, Http10StreamEndsWithTheConnection) {
  start();
  Client client(port());
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ResponderPtr out = take();
  out->start_sse();
  out->write("data: a\n\n");
  out->end();
  Reply reply = client.read_reply();
  EXPECT_EQ(reply.header("transfer-encoding"), "");
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "data: a\n\n");
}

TEST_F(StreamTest, EmptyStreamAndHeadOfAStream) {
  start();
  Client client(port());
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  out->end();
  Reply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body, "");
  client.send("HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  out = take();
  out->start_sse();
  out->write("data: a\n\n");
  out->end();
  EXPECT_EQ(client.read_reply(true).status, 200);
  EXPECT_EQ(client.request(get("/now")).body, "now");
}

TEST_F(StreamTest, AbortedStreamNeverLooksComplete) {
  start();
  for (std::string version : {"1.1", "1.0"}) {
    Client client(port());
    client.send("GET /stream HTTP/" + version + "\r\nHost: localhost\r\n\r\n");
    ResponderPtr out = take();
    out->start_sse();
    out->write("data: a\n\n");
    ASSERT_TRUE(client.read_until("data: a\n\n"));
    out->abort();
    EXPECT_FALSE(out->write("data: b\n\n"));
    EXPECT_TRUE(client.wait_closed());
    EXPECT_EQ(client.buffer().find("0\r\n\r\n"), std::string::npos);
  }
  // A stream whose last handle is dropped counts as aborted too.
  Client client(port());
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  out.reset();
  Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_FALSE(reply.complete);
  EXPECT_EQ(gone_, 0);
}

TEST_F(StreamTest, DisconnectIsSeenWhilePendingAndWhileStreaming) {
  start();
  int expected = 0;
  for (bool streaming : {false, true}) {
    for (bool reset : {false, true}) {
      for (bool pipelined : {false, true}) {
        Client client(port());
        client.send(get("/stream") + (pipelined ? get("/now") : ""));
        ResponderPtr out = take();
        if (streaming) {
          out->start_sse();
          out->write("data: a\n\n");
          ASSERT_TRUE(client.read_until("data: a\n\n"));
        }
        EXPECT_FALSE(out->disconnected());
        reset ? client.reset() : client.close();
        ++expected;
        EXPECT_TRUE(eventually([&] { return gone_ == expected; }))
            << "streaming " << streaming << " reset " << reset << " pipelined " << pipelined;
        EXPECT_TRUE(out->disconnected());
        EXPECT_FALSE(out->write("data: b\n\n"));
        EXPECT_FALSE(out->send({}));
        // Registered too late: called all the same.
        std::atomic<int> late{0};
        out->on_disconnect([&] { ++late; });
        EXPECT_TRUE(eventually([&] { return late == 1; }));
      }
    }
  }
  EXPECT_EQ(server_->stats().disconnects, static_cast<uint64_t>(expected));
  EXPECT_TRUE(eventually([&] { return server_->stats().requests_active == 0; }));
}

TEST_F(StreamTest, DisconnectIsSeenBehindAFullReadAhead) {
  start({.limits = {.head_bytes = 4096, .read_ahead_bytes = 8192}});
  Client client(port());
  std::string flood = get("/stream");
  while (flood.size() < 20'000) flood += get("/now");
  ASSERT_TRUE(client.send(flood));
  ResponderPtr out = take();
  std::this_thread::sleep_for(50ms);
  client.close();
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
}

TEST_F(StreamTest, AnsweredRequestsOfAHalfClosedClientAreWritten) {
  start();
  Client client(port());
  client.send(get("/now") + get("/now"));
  client.half_close();
  EXPECT_EQ(client.read_reply().body, "now");
  EXPECT_EQ(client.read_reply().body, "now");
  EXPECT_TRUE(client.wait_closed());
}

TEST_F(StreamTest, SlowReaderIsAbortedAndMemoryBounded) {
  start({.limits = {.max_pending_bytes = 256 << 10}});
  Client client(port(), 4096);
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  size_t written = 0;
  size_t most = 0;
  while (written < (200u << 20) && out->write(event)) {
    written += event.size();
    most = std::max(most, out->pending_bytes());
  }
  EXPECT_LT(written, 200u << 20) << "never refused";
  EXPECT_LE(most, 256u << 10);
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_EQ(server_->stats().slow_readers, 1u);
  EXPECT_TRUE(client.wait_closed());
}

// The model writes slower than the socket drains at first: the limit is crossed while the socket is full and waited
// for.
TEST_F(StreamTest, SlowReaderIsAbortedWhileItsSocketIsFull) {
  start({.limits = {.max_pending_bytes = 64 << 10}});
  Client client(port(), 4096);
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  const std::string event = "data: " + std::string(30'000, 'x') + "\n\n";
  int refused_after = 0;
  while (refused_after < 10'000 && out->write(event)) {
    ++refused_after;
    for (int i = 0; i < 20 && out->pending_bytes() > 0; ++i) std::this_thread::sleep_for(1ms);
  }
  EXPECT_LT(refused_after, 10'000);
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  EXPECT_EQ(server_->stats().slow_readers, 1u);
}

TEST_F(StreamTest, TheLastTextOfAStreamMayBeOverTheLimit) {
  start({.limits = {.max_pending_bytes = 64 << 10}});
  Client client(port(), 4096);
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  std::string all;
  const std::string event = "data: " + std::string(30'000, 'x') + "\n\n";
  do {  // until the socket is full
    ASSERT_TRUE(out->write(event));
    all += event;
    for (int i = 0; i < 100 && out->pending_bytes() > 0; ++i) std::this_thread::sleep_for(1ms);
  } while (out->pending_bytes() == 0);
  const std::string last = "data: " + std::string(1 << 20, 'y') + "\n\n";
  out->end(last);
  EXPECT_EQ(client.read_reply().body, all + last);
  EXPECT_EQ(server_->stats().slow_readers, 0u);
}

// pending_bytes() does not count what the kernel holds, and a full send buffer is writable again only when a third of
// it is free: with megabytes there, a reader of 100 kB/s seems to take nothing for 13 s.
TEST_F(StreamTest, WhatASlowReaderLeavesWaitsInTheStreamNotInTheKernel) {
  start({.limits = {.max_pending_bytes = 32u << 20}});
  Client client(port(), 4096);
  client.send(get("/stream"));
  ResponderPtr out = take();
  out->start_sse();
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  size_t written = 0;
  while (written < (8u << 20)) {
    ASSERT_TRUE(out->write(event));
    written += event.size();
    for (int i = 0; i < 5 && out->pending_bytes() > 0; ++i) std::this_thread::sleep_for(1ms);
  }
  EXPECT_GT(out->pending_bytes(), written - 2 * static_cast<size_t>(kUnsentBytesInKernel));
}

TEST_F(StreamTest, ClientThatTakesNothingIsAbortedInTime) {
  start({.limits = {.write_stall_timeout = 200ms}});
  Client client(port(), 4096);
  client.send(get("/stream"));
  ResponderPtr out = take();
  // A big plain response has no max_pending_bytes; only the time limit ends it.
  EXPECT_TRUE(out->send({.body = std::string(32 << 20, 'x')}));
  out.reset();
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == 0; }));
  EXPECT_EQ(server_->stats().slow_readers, 1u);
  EXPECT_EQ(gone_, 0) << "the response had been handed over";
}

// Three readers that take nothing: together they hold too much, and the one that asks for more is ended, not the one
// that holds little.
TEST_F(StreamTest, AllSlowReadersTogetherAreBounded) {
  start({.limits = {.unsent_bytes = 3 << 20, .unsent_share_bytes = 1 << 10}});
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<ResponderPtr> outs;
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(port(), 4096));
    clients.back()->send(get("/stream"));
    outs.push_back(take());
    outs.back()->start_sse();
  }
  auto unsent = [&] { return outs[0]->pending_bytes() + outs[1]->pending_bytes(); };
  bool fits = true;  // the limit of one is 4 MiB: two of them reach the 3 MiB before
  while (fits && unsent() < (16u << 20)) fits = outs[0]->write(event) && outs[1]->write(event);
  EXPECT_FALSE(fits);
  EXPECT_LE(unsent(), 3u << 20);
  EXPECT_TRUE(eventually([&] { return server_->stats().slow_readers == 1; }));
  EXPECT_TRUE(outs[2]->write("data: a small one\n\n"));
  outs[2]->end();
  EXPECT_EQ(clients[2]->read_reply().body, "data: a small one\n\n");
}

// What a body counts against is held until the client has it, and no longer, though its connection stays open.
TEST_F(StreamTest, ABodyIsCountedUntilItIsSent) {
  start();
  Client client(port(), 4096);
  client.send(get("/stream"));
  auto counted = std::make_shared<int>(1);
  std::weak_ptr<int> held = counted;
  Response response{.body = std::string(8 << 20, 'x')};
  response.counted = std::move(counted);
  EXPECT_TRUE(take()->send(std::move(response)));
  EXPECT_TRUE(eventually([&] { return server_->stats().responses_2xx == 1; }));
  EXPECT_FALSE(held.expired());
  EXPECT_EQ(client.read_reply().body.size(), 8u << 20);
  EXPECT_TRUE(eventually([&] { return held.expired(); }));
  EXPECT_EQ(server_->stats().connections_open, 1u);
}

TEST_F(StreamTest, BigResponseArrivesComplete) {
  start();
  Client client(port(), 4096);
  client.send(get("/stream"));
  std::string body;
  for (int i = 0; i < 1'000'000; ++i) body += static_cast<char>('a' + i * 7 % 26);
  EXPECT_TRUE(take()->send({.body = body}));
  EXPECT_EQ(client.read_reply().body, body);
}

TEST_F(StreamTest, ManyStreamsFromOtherThreads) {
  start();
  constexpr int kStreams = 64;
  constexpr int kEvents = 500;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(get("/stream"));
  }
  std::vector<ResponderPtr> outs;
  for (int i = 0; i < kStreams; ++i) outs.push_back(take());
  auto produce = [&](int first) {
    for (int i = first; i < kStreams; i += 2) ASSERT_TRUE(outs[i]->start_sse());
    for (int n = 0; n < kEvents; ++n) {
      for (int i = first; i < kStreams; i += 2) ASSERT_TRUE(outs[i]->write("data: " + std::to_string(n) + "\n\n"));
    }
    for (int i = first; i < kStreams; i += 2) outs[i]->end();
  };
  std::thread even(produce, 0), odd(produce, 1);
  std::string want;
  for (int n = 0; n < kEvents; ++n) want += "data: " + std::to_string(n) + "\n\n";
  for (auto& client : clients) {
    Reply reply = client->read_reply();
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(reply.body, want);
  }
  even.join();
  odd.join();
  EXPECT_EQ(gone_, 0);
}

TEST_F(StreamTest, ClientsLeaveWhileOthersWrite) {
  start();
  for (int round = 0; round < 20; ++round) {
    auto client = std::make_unique<Client>(port());
    client->send(get("/stream"));
    ResponderPtr out = take();
    std::thread producer([out] {
      out->start_sse();
      for (int n = 0; n < 2000 && out->write("data: x\n\n"); ++n) {
      }
      out->end();
    });
    client->receive();
    round % 2 ? client->reset() : client->close();
    producer.join();
  }
  EXPECT_TRUE(eventually([&] { return server_->stats().connections_open == 0; }));
}

TEST_F(StreamTest, SseDataSplitsLines) {
  std::string out;
  append_sse_data(out, "a");
  append_sse_data(out, "b\nc\r\nd\re");
  append_sse_data(out, "");
  EXPECT_EQ(out, "data: a\n\ndata: b\ndata: c\ndata: d\ndata: e\n\ndata: \n\n");
}

}  // namespace
}  // namespace millrace::http
