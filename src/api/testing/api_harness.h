// ApiHarness: the real routes behind a real HTTP server, in front of an engine that emits what the test wants.
// For tests only. Thread safety: the engine locks; the harness belongs to the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/routes.h"
#include "base/json.h"
#include "base/log.h"
#include "http/client.h"

namespace millrace::api::testing {

template <typename Condition>
bool eventually(Condition condition, int timeout_ms = 120'000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline Json parsed(std::string_view text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

// Request i gets the id i + 1.
class FakeEngine : public Engine {
 public:
  ModelFacts facts;
  std::function<Status(std::size_t index)> refuse;  // set: answers from inside submit() where it is not OK
  std::map<int32_t, std::string> bytes;             // of tokens; others are "t" and their number
  std::vector<wire::AdminRequest> commands;         // what admin() was asked
  std::vector<wire::AdminReply> replies = {{.stage = "scheduler", .message = "done"}};
  Health state = {.ready = true};
  static constexpr int32_t kUndecodable = 66;  // a list that begins with it has no text

  ReqId submit(GenerateRequest request, std::shared_ptr<TextAnswer> answer) override {
    std::size_t index = 0;
    {
      std::lock_guard lock(mutex_);
      index = requests_.size();
      requests_.push_back(std::move(request));
      answers_.push_back(std::move(answer));
    }
    if (refuse) {
      if (Status status = refuse(index); !status.ok()) deliver(index, error_of(index, status));
    }
    return ReqId{index + 1};
  }
  void abort(ReqId id) override {
    std::lock_guard lock(mutex_);
    aborts_.push_back(id.value - 1);
    // Samples that were under way may still come.
    if (!requests_[id.value - 1].speech) answers_[id.value - 1] = nullptr;
  }
  void cancel(ReqId id) override {
    deliver(id.value - 1, {.id = id, .finish = wire::Finish{.reason = wire::FinishReason::kAborted}});
  }
  void admin(wire::AdminAction action, int64_t timeout_ms,
             std::function<void(std::vector<wire::AdminReply>)> done) override {
    {
      std::lock_guard lock(mutex_);
      commands.push_back({.action = action, .timeout_ms = timeout_ms});
    }
    done(replies);
  }
  std::string token_bytes(int32_t id) const override {
    const auto found = bytes.find(id);
    return found == bytes.end() ? "t" + std::to_string(id) : found->second;
  }
  void tokenize(Prompt, std::function<void(Result<TokenizeReply>)> done) override { done(TokenizeReply{{1, 2}}); }
  void detokenize(std::vector<int32_t> ids, bool, std::function<void(Result<std::string>)> done) override {
    if (ids.empty() || ids[0] != kUndecodable) return done(std::string("text"));
    done(Status(StatusCode::kUnavailable, "the tokenizer stops"));
  }
  const ModelFacts& model() const override { return facts; }
  Health health() const override {
    Health health = state;
    health.draining = health.draining || draining_;
    return health;
  }
  void drain() { draining_ = true; }

  void deliver(std::size_t index, const wire::TextDelta& delta) {
    const auto answer = answer_to(index);
    const std::vector<std::size_t> aborted = aborts();
    if (answer && !std::binary_search(aborted.begin(), aborted.end(), index)) answer->on_text(delta);
  }
  void accept(std::size_t index) { deliver(index, {.id = ReqId{index + 1}, .accepted = true, .usage = {5, 0, 2}}); }
  void text(std::size_t index, std::string text, int32_t tokens) {
    deliver(index, {.id = ReqId{index + 1}, .text = std::move(text), .usage = {5, tokens, 2}});
  }
  // What an engine does with the samples of an answer that is spoken.
  SinkAnswer audio(std::size_t index, const std::vector<float>& samples) { return answer_to(index)->on_audio(samples); }
  // One token with its text and its logprob, and the rivals.
  void token(std::size_t index, int32_t id, std::string text, wire::Usage usage, double logprob,
             std::vector<std::pair<int32_t, double>> top = {}, std::vector<double> of_ids = {}) {
    wire::TextDelta delta{.id = ReqId{index + 1}, .text = std::move(text), .usage = usage, .tokens = {id}};
    delta.logprobs = {position(id, logprob, top, std::move(of_ids))};
    deliver(index, delta);
  }
  static wire::TokenLogprobs position(int32_t id, std::optional<double> logprob,
                                      const std::vector<std::pair<int32_t, double>>& top = {},
                                      std::vector<double> of_ids = {}) {
    wire::TokenLogprobs out{.token = id, .logprob = logprob};
    for (const auto& [rival, value] : top) out.top_ids.push_back(rival), out.top.push_back(value);
    out.of_ids = std::move(of_ids);
    return out;
  }
  void end(std::size_t index, wire::Finish finish, int32_t tokens, std::string text = "") {
    deliver(index,
            {.id = ReqId{index + 1}, .text = std::move(text), .finish = std::move(finish), .usage = {5, tokens, 2}});
  }
  static wire::TextDelta error_of(std::size_t index, const Status& status) {
    wire::TextDelta delta{.id = ReqId{index + 1}};
    delta.finish =
        wire::Finish{.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()};
    return delta;
  }

  std::size_t asked() const {  // how many admin commands
    std::lock_guard lock(mutex_);
    return commands.size();
  }
  std::size_t submitted() const {
    std::lock_guard lock(mutex_);
    return requests_.size();
  }
  GenerateRequest request(std::size_t index) const {
    std::lock_guard lock(mutex_);
    return requests_.at(index);
  }
  std::vector<std::size_t> aborts() const {  // sorted, each once
    std::lock_guard lock(mutex_);
    std::vector<std::size_t> out = aborts_;
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

 private:
  std::shared_ptr<TextAnswer> answer_to(std::size_t index) const {
    std::lock_guard lock(mutex_);
    return answers_.at(index);
  }

  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::vector<GenerateRequest> requests_;
  std::vector<std::shared_ptr<TextAnswer>> answers_;
  std::vector<std::size_t> aborts_;
};

class ApiHarness : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    engine_.facts.name = "demo";
    engine_.facts.vocab_size = 100;
    engine_.facts.context_length = 64;
    http::ServerOptions options;
    options.admin_without_key = true;
    options.render_error = render_error_for_server;
    server_ = std::make_unique<http::Server>(std::move(options));
    context_ = std::make_unique<ApiContext>(ApiContext{*server_, engine_, "test"});
    add_routes(*context_);
    const Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void TearDown() override { server_->stop(); }
  static std::string render_error_for_server(int status, std::string_view message) {
    return std::to_string(status) + " " + std::string(message);
  }

  void events(std::size_t index, std::vector<wire::OutputEvent> events) {
    engine_.deliver(index, {.id = ReqId{index + 1}, .usage = {5, 2, 0}, .events = std::move(events)});
  }
  // Reasoning, text, two calls and text again.
  void deliver_two_calls(std::size_t index) {
    using Kind = wire::OutputEvent::Kind;
    engine_.accept(index);
    events(index, {{Kind::kReasoning, "h"}, {Kind::kReasoning, "m"}, {Kind::kText, "so"}});
    events(index, {{Kind::kCallBegin, "f"}, {Kind::kArguments, R"({"a")"}});
    events(index, {{Kind::kArguments, ":1}"}, {Kind::kCallEnd, ""}});
    events(index, {{Kind::kCallBegin, "f"}, {Kind::kArguments, "{}"}, {Kind::kCallEnd, ""}, {Kind::kText, "on"}});
    engine_.end(index, {.reason = wire::FinishReason::kStop, .matched_token = 3}, 4);
  }

  struct Answer {
    int status = 0;
    std::string body;                 // not streamed
    std::vector<std::string> events;  // streamed
    Json json() const { return parsed(body); }
  };
  // The whole exchange, on a thread of its own. With stop_after, the client hangs up after so many events.
  std::future<Answer> post(std::string path, std::string body, std::size_t stop_after = SIZE_MAX) {
    return std::async(std::launch::async, [port = server_->port(), path, body, stop_after] {
      http::Client client({"127.0.0.1", port}, "");
      Answer answer;
      http::SseReader reader;
      std::string streamed;
      auto response = client.post(path, body, [&](std::string_view bytes) {
        streamed += bytes;
        reader.push(bytes, [&](std::string_view event) {
          answer.events.emplace_back(event);
          return true;
        });
        return answer.events.size() < stop_after;
      });
      if (response.ok()) {
        answer.status = response->status;
        answer.body = response->body.empty() ? streamed : response->body;
      }
      return answer;
    });
  }
  Answer get(const std::string& path) {
    http::Client client({"127.0.0.1", server_->port()}, "");
    Answer answer;
    if (auto response = client.get(path); response.ok()) answer = {response->status, response->body, {}};
    return answer;
  }
  void wait_submitted(std::size_t count) {
    ASSERT_TRUE(eventually([&] { return engine_.submitted() >= count; }));
  }

  FakeEngine engine_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<ApiContext> context_;
};

}  // namespace millrace::api::testing
