// A server in front of another one: answers, streams, clients that leave, servers that do.
#include "http/forwarder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>

#include "base/log.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::get;
using testing::post;
using testing::Reply;

class ForwarderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }
  void SetUp() override {
    char folder[] = "/tmp/forwarder-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    behind_ = std::make_unique<Server>(ServerOptions{.unix_socket = folder_ + "/s", .tcp = false});
    behind_->add_route({.method = "GET", .pattern = "/echo", .handler = [](RequestPtr in, ResponderPtr out) {
                          const std::string* field = in->headers.find("X-Mine");
                          out->send({.headers = {{"X-Theirs", "yes"}}, .body = in->query + (field ? *field : "")});
                        }});
    behind_->add_route({.method = "POST", .pattern = "/echo", .handler = [](RequestPtr in, ResponderPtr out) {
                          out->send({.status = 418, .headers = {{"Retry-After", "7"}}, .body = in->body});
                        }});
    behind_->add_route({.method = "GET", .pattern = "/stream", .handler = [this](RequestPtr, ResponderPtr out) {
                          out->start_sse();
                          out->write("data: 1\n\n");
                          out->on_disconnect([this] { left_.set_value(); });
                          held_ = out;
                          streaming_.set_value();
                        }});
    ASSERT_TRUE(behind_->start().ok());
    ASSERT_TRUE(forwarder_.start().ok());
    entry_ = std::make_unique<Server>(ServerOptions{});
    for (const char* method : {"GET", "POST"}) {
      entry_->add_route({.method = method, .pattern = "/{path...}", .handler = [this](RequestPtr in, ResponderPtr out) {
                           ForwardTarget target{folder_ + "/s", in->path + (in->query.empty() ? "" : "?" + in->query)};
                           forwarder_.forward(in, out, std::move(target), [this] { ++ended_; });
                         }});
    }
    ASSERT_TRUE(entry_->start().ok());
  }
  void TearDown() override {
    held_.reset();
    entry_.reset();
    forwarder_.stop();
    behind_.reset();
    std::filesystem::remove_all(folder_);
  }
  Reply ask(const std::string& request) { return testing::Client(entry_->port()).request(request); }

  std::string folder_;
  std::promise<void> streaming_, left_;
  ResponderPtr held_;
  std::atomic<int> ended_{0};
  std::unique_ptr<Server> behind_, entry_;
  Forwarder forwarder_{[](const std::string&) { return Response{.status = 503, .body = "unreachable"}; }};
};

TEST_F(ForwarderTest, BringsCompleteAnswersBack) {
  Reply reply = ask("GET /echo?a=%20b HTTP/1.1\r\nHost: localhost\r\nX-Mine: m\r\n\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "a=%20bm");
  EXPECT_EQ(reply.header("X-Theirs"), "yes");
  reply = ask(post("/echo", "{\"text\": \"x\"}"));
  EXPECT_EQ(reply.status, 418);
  EXPECT_EQ(reply.body, "{\"text\": \"x\"}");
  EXPECT_EQ(reply.header("Retry-After"), "7");
  EXPECT_EQ(ask(get("/none")).status, 404);
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(ask(post("/echo", "\"" + large + "\"")).body.size(), large.size() + 2);
}

TEST_F(ForwarderTest, BringsChunksOfAStreamAsTheyCome) {
  testing::Client client(entry_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(client.read_until("data: 1\n\n"));
  EXPECT_NE(client.buffer().find("text/event-stream"), std::string::npos);
  streaming_.get_future().wait();
  held_->write("data: 2\n\n");
  ASSERT_TRUE(client.read_until("data: 2\n\n"));
  held_->end();
  EXPECT_TRUE(client.read_until("0\r\n\r\n"));
}

TEST_F(ForwarderTest, EndsTheRequestWhenTheClientLeaves) {
  {
    testing::Client client(entry_->port());
    client.send(get("/stream"));
    ASSERT_TRUE(client.read_until("data: 1\n\n"));
  }
  left_.get_future().wait();
}

TEST_F(ForwarderTest, BreaksOffWhatBreaksOff) {
  testing::Client client(entry_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(client.read_until("data: 1\n\n"));
  streaming_.get_future().wait();
  held_->abort();
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(client.buffer().find("\r\n0\r\n"), std::string::npos);  // no end that looks well
}

TEST_F(ForwarderTest, AnswersForAServerThatIsGone) {
  behind_.reset();
  const Reply reply = ask(get("/echo"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "unreachable");
}

TEST_F(ForwarderTest, FetchesForItself) {
  std::promise<std::string> body, failure;
  forwarder_.fetch({folder_ + "/s", "/echo?q"}, 60'000, [&](Result<ClientResponse> answer) {
    body.set_value(answer.ok() ? answer->body : answer.status().message());
  });
  EXPECT_EQ(body.get_future().get(), "q");
  forwarder_.fetch({folder_ + "/none", "/echo"}, 60'000, [&](Result<ClientResponse> answer) {
    failure.set_value(answer.ok() ? "" : answer.status().message());
  });
  EXPECT_NE(failure.get_future().get(), "");
}

}  // namespace
}  // namespace millrace::http
