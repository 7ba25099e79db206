// /live/events over real sockets: what an event has, how many clients there may be, and that nothing is asked without
// one.
#include <gtest/gtest.h>

#include <atomic>

#include "api/live_view.h"
#include "api/testing/api_harness.h"
#include "http/testing/test_client.h"
#include "stages/log_lines.h"

namespace millrace::api::testing {
namespace {

constexpr const char* kPath = "/live/events";

// One client that reads until it leaves, on a thread of its own.
class Watcher {
 public:
  explicit Watcher(uint16_t port) : client_({"127.0.0.1", port}, "") {
    thread_ = std::thread([this] {
      auto response = client_.get(kPath, [this](std::string_view chunk) {
        return reader_.push(chunk, [this](std::string_view event) {
          std::lock_guard lock(mutex_);
          last_ = std::string(event);
          ++count_;
          return !leave_;
        });
      });
      status_ = response.ok() ? response->status : 200;  // it left in the middle of the stream
      ended_ = true;
    });
  }
  ~Watcher() {
    leave_ = true;
    thread_.join();
  }
  Json next() {
    const int before = count_;
    EXPECT_TRUE(eventually([&] { return count_ > before || ended_; }));
    std::lock_guard lock(mutex_);
    return parsed(last_);
  }
  bool ended() const { return ended_; }
  int status() const { return status_; }
  int count() const { return count_; }

 private:
  http::Client client_;
  http::SseReader reader_;
  std::mutex mutex_;
  std::string last_;
  std::atomic<int> count_{0}, status_{0};
  std::atomic<bool> leave_{false}, ended_{false};
  std::thread thread_;
};

class LiveViewTest : public ApiHarness {
 protected:
  void SetUp() override {
    wire::StageStatus scheduler{.stage = "scheduler", .state = wire::StageState::kReady, .steps = 4};
    scheduler.metrics = {{"kv_transfers_open{peer=a}", 2}, {"other", 1}};
    engine_.state.stages = {scheduler};
    engine_.replies = {{.stage = "scheduler", .message = R"({"running":1})"},
                       {.stage = "detokenizer", .code = StatusCode::kUnsupported, .message = "it has none"}};
    ApiHarness::SetUp();
  }
  std::string metric(const std::string& name) {
    const std::string page = get("/metrics").body;
    const std::size_t at = page.find("millrace:" + name + "{");
    return at == std::string::npos
               ? ""
               : page.substr(page.find("} ", at) + 2, page.find('\n', at) - page.find("} ", at) - 2);
  }
  bool has_no_client() {
    return eventually([&] { return metric("live_view_clients") == "0"; });
  }
};

TEST_F(LiveViewTest, AnEventHasStagesSchedulersRequestsAndLatencies) {
  auto answer = post("/generate", R"({"text":"hi","rid":"mine","sampling_params":{"n":2}})");
  wait_submitted(2);
  engine_.accept(0);
  Watcher watcher(server_->port());
  const Json event = watcher.next();
  EXPECT_EQ(event["ready"], true);
  EXPECT_EQ(event["model"], "demo");
  ASSERT_EQ(event["stages"].size(), 1u);
  EXPECT_EQ(event["stages"][0]["metrics"], parsed(R"({"kv_transfers_open{peer=a}":2})"));
  EXPECT_EQ(event["schedulers"], parsed(R"([{"stage":"scheduler","state":{"running":1}}])"));
  EXPECT_EQ(event["requests"], parsed(R"([{"name":"mine","ids":[1,2]},{"name":"mine_0","ids":[1]},)"
                                      R"({"name":"mine_1","ids":[2]}])"));
  EXPECT_EQ(event["latency"]["end_to_end"]["count"], 0);
  engine_.end(0, {.reason = wire::FinishReason::kLength}, 3);
  engine_.end(1, {.reason = wire::FinishReason::kLength}, 3);
  EXPECT_EQ(answer.get().status, 200);
  EXPECT_TRUE(eventually([&] { return watcher.next()["requests"].empty(); }));
  const Json latency = watcher.next()["latency"]["end_to_end"];
  EXPECT_EQ(latency["count"], 2);
  EXPECT_EQ(latency["counts"].size(), latency["bounds"].size() + 1);
  EXPECT_GT(latency["p99"], 0);
}

TEST_F(LiveViewTest, ASchedulerThatDoesNotAnswerIsNamed) {
  engine_.replies = {{.stage = "scheduler", .code = StatusCode::kDeadline, .message = "did not answer"}};
  Watcher watcher(server_->port());
  EXPECT_EQ(watcher.next()["schedulers"], parsed(R"([{"stage":"scheduler","error":"did not answer"}])"));
}

TEST_F(LiveViewTest, TheLogOfAnotherProcessComesOnceWithTheNamesOfItsStages) {
  const std::string log = R"({"process":"7","lines":[[3,1,2,"hot"],[4,2,1,"cool"]]})";
  engine_.replies = {{.stage = "scheduler", .message = log},
                     {.stage = "detokenizer", .message = log},
                     {.stage = "other", .message = R"({"process":"8","lines":[[1,9,3,{}]]})"},
                     {.stage = "tokenizer", .message = log_lines_json("another")}};  // a stage of this very process
  Watcher watcher(server_->port());
  const Json lines = watcher.next()["log"];
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            parsed(R"({"number":3,"time_ms":1,"level":"warning","stage":"scheduler, detokenizer","text":"hot"})"));
  EXPECT_EQ(lines[1]["text"], "cool");
  for (std::size_t i = 2; i < lines.size(); ++i) EXPECT_EQ(lines[i]["stage"], "server");
}

TEST_F(LiveViewTest, OneMoreThanTheLimitIsRefusedAndMayComeWhenOneHasLeft) {
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (std::size_t i = 0; i < kMaxLiveClients; ++i) {
    watchers.push_back(std::make_unique<Watcher>(server_->port()));
    EXPECT_EQ(watchers.back()->next()["model"], "demo");
  }
  const Answer refused = get(kPath);
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.json()["error"]["message"].get<std::string>().find("8 clients look at /live/events, the limit"),
            std::string::npos);
  watchers.pop_back();
  ASSERT_TRUE(eventually([&] { return metric("live_view_clients") == "7"; }));
  Watcher late(server_->port());
  EXPECT_TRUE(eventually([&] { return late.next()["clients"] == 8; }));
}

TEST_F(LiveViewTest, NothingIsAskedWithoutAClient) {
  EXPECT_EQ(metric("live_view_events_total"), "0");
  {
    Watcher watcher(server_->port());
    watcher.next(), watcher.next();
  }
  ASSERT_TRUE(has_no_client());
  // The timer of the last event finds no client. One that comes later begins anew.
  ASSERT_TRUE(eventually([&] { return engine_.asked() >= 2; }));
  const std::string events = metric("live_view_events_total");
  EXPECT_GE(std::stoi(events), 2);
  const std::size_t asked = engine_.asked();
  std::promise<void> later;
  server_->post_after(std::chrono::milliseconds(3 * kLivePeriodMs), [&] { later.set_value(); });
  later.get_future().get();
  EXPECT_EQ(engine_.asked(), asked);
  EXPECT_EQ(metric("live_view_events_total"), events);
  for (const wire::AdminRequest& command : engine_.commands) {
    EXPECT_TRUE(command.action == wire::AdminAction::kShowState || command.action == wire::AdminAction::kShowLog);
  }
}

TEST_F(LiveViewTest, StreamsEndWhenTheServerDrains) {
  Watcher watcher(server_->port());
  watcher.next();
  engine_.drain();
  EXPECT_TRUE(eventually([&] { return watcher.ended(); }));
  EXPECT_EQ(get(kPath).status, 503);
}

// Handlers of large bodies run on another thread than the one that owns the view.
TEST_F(LiveViewTest, ABodyIsRefused) {
  http::testing::Client client(server_->port());
  client.send(
      "GET /live/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "70000\r\n\r\n" +
      std::string(70'000, ' '));
  EXPECT_EQ(client.read_reply().status, 413);
  EXPECT_TRUE(has_no_client());
}

}  // namespace
}  // namespace millrace::api::testing
