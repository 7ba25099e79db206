// The generator against a server of the test: what it sends, what it makes of the answers, and servers that fail.
#include "load/generator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "http/server.h"

namespace millrace::load {
namespace {

using http::RequestPtr;
using http::ResponderPtr;

class GeneratorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  void start(std::function<void(const Json&, ResponderPtr)> answer) {
    server_ = std::make_unique<http::Server>(http::ServerOptions{});
    server_->add_route({.method = "GET", .pattern = "/v1/models", .handler = [](RequestPtr, ResponderPtr out) {
                          out->send({.body = R"({"object":"list","data":[{"id":"first"},{"id":"second"}]})"});
                        }});
    const auto handler = [this, answer](RequestPtr in, ResponderPtr out) {
      const auto body = parse_json(in->body);
      ASSERT_TRUE(body.ok());
      {
        std::lock_guard lock(mutex_);
        bodies_.push_back(*body);
      }
      answer(*body, std::move(out));
    };
    for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
      server_->add_route({.method = "POST", .pattern = path, .handler = handler});
    }
    ASSERT_TRUE(server_->start().ok());
    options_.url = {.host = "127.0.0.1", .port = server_->port()};
  }

  std::vector<Outcome> outcomes_of(const WorkloadOptions& wanted) {
    const auto workload = make_workload(wanted);
    EXPECT_TRUE(workload.ok());
    const auto outcomes = run(options_, *workload, {});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status().to_string();
    return outcomes.ok() ? *outcomes : std::vector<Outcome>{};
  }

  GeneratorOptions options_{.clients = 4};
  std::mutex mutex_;
  std::vector<Json> bodies_;
  std::unique_ptr<http::Server> server_;
};

// Three events with text, one without, the usage that contradicts their number, and the end.
void stream(ResponderPtr out) {
  out->start_sse();
  out->write("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\": \"b\"}]}\n\n");
  out->write(
      "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"text\":\"c\"}]}\n\n");
  out->write("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n");
  out->end();
}

TEST_F(GeneratorTest, AsksForEachRequestOnceAndReadsTheAnswers) {
  start([](const Json&, ResponderPtr out) { stream(std::move(out)); });
  const auto outcomes = outcomes_of({.requests = 20, .prompt_tokens = 3, .answer_tokens = 9});
  ASSERT_EQ(outcomes.size(), 20u);
  for (const Outcome& one : outcomes) {
    EXPECT_EQ(one.error, "");
    EXPECT_EQ(one.answer_tokens, 5);
    EXPECT_EQ(one.prompt_tokens, 11);
    EXPECT_EQ(one.gaps_us.size(), 2u);
    EXPECT_GE(one.first_us, one.begin_us);
    EXPECT_GE(one.end_us, one.first_us);
  }
  ASSERT_EQ(bodies_.size(), 20u);
  for (const Json& body : bodies_) {
    EXPECT_EQ(body["model"], "first");
    EXPECT_EQ(body["prompt"].size(), 3u);
    EXPECT_EQ(body["max_tokens"], 9);
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["ignore_eos"], true);
  }
}

TEST_F(GeneratorTest, ChatSendsMessages) {
  start([](const Json&, ResponderPtr out) { stream(std::move(out)); });
  options_.chat = true;
  options_.ignore_eos = false;
  options_.model = "mine";
  const auto outcomes = outcomes_of({.requests = 1, .prompt_tokens = 2, .text = true});
  ASSERT_EQ(bodies_.size(), 1u);
  EXPECT_EQ(bodies_[0]["model"], "mine");
  EXPECT_EQ(bodies_[0]["messages"][0]["role"], "user");
  EXPECT_TRUE(bodies_[0]["messages"][0]["content"].is_string());
  EXPECT_FALSE(bodies_[0].contains("ignore_eos"));
}

TEST_F(GeneratorTest, NeverMoreRequestsAtATimeThanClients) {
  std::atomic<int> now{0}, most{0};
  std::vector<std::thread> threads;
  start([&](const Json&, ResponderPtr out) {
    const int count = ++now;
    most.store(std::max(most.load(), count));
    threads.emplace_back([&now, &most, out] {
      for (int i = 0; i < 6000 && most < 2; ++i) {  // the first is held until a second has come
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      --now;
      stream(out);
    });
  });
  outcomes_of({.requests = 12, .rate = 1e6});
  for (auto& thread : threads) thread.join();
  EXPECT_LE(most.load(), 4);
  EXPECT_GE(most.load(), 2);
}

TEST_F(GeneratorTest, RefusalsAndBrokenStreamsAreErrorsOfTheirRequest) {
  std::atomic<int> count{0};
  start([&](const Json&, ResponderPtr out) {
    switch (count++ % 4) {
      case 0:
        out->send({.status = 429, .body = R"({"error":{"message":"busy"}})"});
        return;
      case 1:
        out->start_sse();
        out->write("data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
        out->end();
        return;
      case 2:
        out->start_sse();
        out->write("data: {\"error\":{\"message\":\"the stage died\"}}\n\n");
        out->end();
        return;
      default:
        stream(std::move(out));
    }
  });
  options_.clients = 1;
  const auto outcomes = outcomes_of({.requests = 4});
  ASSERT_EQ(outcomes.size(), 4u);
  EXPECT_EQ(outcomes[0].error, "HTTP 429: busy");
  EXPECT_EQ(outcomes[1].error, "the stream ended without [DONE]");
  EXPECT_EQ(outcomes[2].error, "the stage died");
  EXPECT_EQ(outcomes[3].error, "");
}

TEST_F(GeneratorTest, AServerThatHangsCostsOneTimeoutEach) {
  std::mutex mutex;
  std::vector<ResponderPtr> kept;
  start([&](const Json&, ResponderPtr out) {
    std::lock_guard lock(mutex);
    out->start_sse();
    kept.push_back(std::move(out));
  });
  options_.timeout_ms = 200;
  const auto outcomes = outcomes_of({.requests = 4});
  for (const Outcome& one : outcomes) EXPECT_NE(one.error, "");
}

TEST_F(GeneratorTest, NoServerIsOneError) {
  start([](const Json&, ResponderPtr out) { stream(std::move(out)); });
  server_->stop();
  const auto workload = make_workload({.requests = 4});
  const auto outcomes = run(options_, *workload, {});
  EXPECT_EQ(outcomes.status().code(), StatusCode::kUnavailable);
  options_.clients = 0;
  EXPECT_EQ(run(options_, *workload, {}).status().message(), "clients is 0; wanted 1 to 4096");
}

TEST(HoldsText, LooksAtEverySpelling) {
  EXPECT_TRUE(holds_text(R"({"choices":[{"delta":{"content":"x"}}]})"));
  EXPECT_TRUE(holds_text(R"({"choices":[{"text": "x"}]})"));
  EXPECT_FALSE(holds_text(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"));
  EXPECT_FALSE(holds_text(R"({"choices":[{"delta":{"content":null}}]})"));
  EXPECT_TRUE(holds_text(R"({"choices":[{"delta":{"reasoning_content":"x"}}]})"));
  EXPECT_TRUE(holds_text(R"({"choices":[{"delta":{"reasoning":"x","content":null}}]})"));
  EXPECT_FALSE(holds_text(R"({"choices":[{"delta":{"reasoning_content":null,"content":""}}]})"));
  EXPECT_FALSE(holds_text(R"({"choices":[],"usage":{}})"));
}

}  // namespace
}  // namespace millrace::load
