// The scheduler stage beside its work: what its heartbeat says of a runner that hangs and of one that is slow, and how
// it obeys orders without holding up the loop.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/trace.h"
#include "scheduler/testing/fake_runner.h"
#include "stages/scheduler_stage.h"

namespace millrace {
namespace {

using testing::FakeRunner;
using testing::HashModel;
using wire::AdminAction;
using wire::StageState;

constexpr RunnerFacts kFacts{1000, 256, 16, 256};  // vocabulary, context, page size, pages

// What a test does with the runner from outside.
struct Control {
  std::atomic<bool> blocked{false};  // steps do not end
  std::atomic<bool> moves{false};    // but they move
};

class HeldRunner : public FakeRunner {
 public:
  explicit HeldRunner(Control& control) : FakeRunner(kFacts, HashModel{}), control_(control) {}
  std::optional<BatchResult> poll(int timeout_ms) override {
    if (!control_.blocked.load()) return FakeRunner::poll(timeout_ms);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(timeout_ms, 5)));
    return std::nullopt;
  }
  uint64_t progress() const override { return control_.moves.load() ? ++progress_ : progress_.load(); }

 private:
  Control& control_;
  mutable std::atomic<uint64_t> progress_{0};
};

class SchedulerOrdersTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  void SetUp() override {
    LocalMailbox in = make_local_mailbox();
    to_stage_ = in.outbox;
    stage_ = std::make_unique<SchedulerStage>(
        SchedulerOptions{},
        [this](const LoadProgress&) -> Result<std::unique_ptr<Runner>> {
          return std::unique_ptr<Runner>(std::make_unique<HeldRunner>(control_));
        },
        std::move(in.inbox), out_.outbox, 1, SchedulerSeat{.name = "scheduler-3", .replica = 3});
    thread_ = std::thread([this] { stage_->run(); });
  }
  void TearDown() override {
    control_.blocked.store(false);
    stage_->request_stop();
    thread_.join();
  }

  void send(wire::Message message) { ASSERT_TRUE(to_stage_->send(message).ok()); }
  void generate(uint64_t id, int32_t tokens) {
    wire::TokenizedRequest request{.id = ReqId{id}, .prompt = {1, 2, 3}};
    request.sampling.max_tokens = tokens;
    request.sampling.ignore_eos = true;
    send(std::move(request));
  }
  void order(uint64_t id, AdminAction action, int64_t timeout_ms = 0, std::string argument = "") {
    send(wire::AdminRequest{.id = id, .action = action, .argument = std::move(argument), .timeout_ms = timeout_ms});
  }
  // Hears one message; keeps the newest status, all replies and the number of ends.
  void listen() {
    auto message = out_.inbox->receive(100);
    if (!message) return;
    if (auto* status = std::get_if<wire::StageStatus>(&*message)) {
      EXPECT_EQ(status->stage, "scheduler-3");
      EXPECT_EQ(status->replica, 3u);
      status_ = std::move(*status);
      ++beats_;
    } else if (auto* reply = std::get_if<wire::AdminReply>(&*message)) {
      EXPECT_EQ(reply->stage, "scheduler-3");
      replies_.push_back(std::move(*reply));
    } else {
      const auto& batch = std::get<wire::TokenBatch>(*message);
      EXPECT_EQ(batch.source, 3u);
      for (const wire::TokenDelta& delta : batch.deltas) ends_ += delta.finish ? 1 : 0;
    }
  }
  template <typename Condition>
  bool listen_until(Condition condition, int timeout_ms = 10'000) {
    const int64_t end_ms = monotonic_ms() + timeout_ms;
    while (!condition() && monotonic_ms() < end_ms) listen();
    return condition();
  }
  bool is(StageState state) { return status_ && status_->state == state; }
  double metric(const std::string& name) const {
    for (const wire::Metric& metric : status_->metrics) {
      if (metric.name == name) return metric.value;
    }
    ADD_FAILURE() << "no metric " << name;
    return -1;
  }

  Control control_;
  LocalMailbox out_ = make_local_mailbox();
  std::shared_ptr<Outbox> to_stage_;
  std::unique_ptr<SchedulerStage> stage_;
  std::thread thread_;
  std::optional<wire::StageStatus> status_;
  int beats_ = 0;
  std::vector<wire::AdminReply> replies_;
  int ends_ = 0;
};

TEST_F(SchedulerOrdersTest, ARunnerThatHangsIsReportedWithinTwoSecondsAndNotBefore) {
  ASSERT_TRUE(listen_until([&] { return is(StageState::kReady); }));
  control_.blocked.store(true);
  generate(1, 4);
  const int64_t begin_ms = monotonic_ms();
  ASSERT_TRUE(listen_until([&] { return is(StageState::kStalled); }));
  const int64_t took_ms = monotonic_ms() - begin_ms;
  EXPECT_GE(took_ms, kStalledMs - kHeartbeatMs);
  EXPECT_LT(took_ms, 2000 + 500);  // half a second for a loaded machine
  EXPECT_NE(status_->message.find("no progress"), std::string::npos);
  // It goes on: ready again, and the request ends.
  control_.blocked.store(false);
  EXPECT_TRUE(listen_until([&] { return is(StageState::kReady) && ends_ == 1; }));
}

TEST_F(SchedulerOrdersTest, ALongStepThatMovesIsNotStalled) {
  ASSERT_TRUE(listen_until([&] { return is(StageState::kReady); }));
  control_.moves.store(true);
  control_.blocked.store(true);
  generate(1, 4);
  const int64_t begin_ms = monotonic_ms();
  const int before = beats_;
  while (monotonic_ms() - begin_ms < 2 * kStalledMs) {
    listen();
    ASSERT_FALSE(is(StageState::kStalled));
  }
  EXPECT_GT(beats_, before + 4);
  control_.moves.store(false);  // and now it hangs
  EXPECT_TRUE(listen_until([&] { return is(StageState::kStalled); }));
}

TEST_F(SchedulerOrdersTest, AnIdleStageIsNeverStalled) {
  control_.blocked.store(true);
  const int64_t begin_ms = monotonic_ms();
  while (monotonic_ms() - begin_ms < kStalledMs + 3 * kHeartbeatMs) {
    listen();
    ASSERT_FALSE(is(StageState::kStalled));
  }
}

TEST_F(SchedulerOrdersTest, AFlushWaitsForAnIdleMomentAndTheLoopGoesOn) {
  generate(1, 40);
  ASSERT_TRUE(listen_until([&] { return ends_ == 1; }));
  ASSERT_TRUE(listen_until([&] { return status_->pages_cached > 0; }));
  order(7, AdminAction::kFlushCache);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 1; }));
  EXPECT_EQ(replies_[0].id, 7u);
  EXPECT_EQ(replies_[0].code, StatusCode::kOk) << replies_[0].message;
  ASSERT_TRUE(listen_until([&] { return status_->pages_cached == 0; }));

  // While one runs: no patience gets a conflict, and patience waits.
  control_.blocked.store(true);
  generate(2, 40);
  order(8, AdminAction::kFlushCache, 0);
  order(9, AdminAction::kFlushCache, 60'000);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 2; }));
  EXPECT_EQ(replies_[1].id, 8u);
  EXPECT_EQ(replies_[1].code, StatusCode::kConflict);
  EXPECT_NE(replies_[1].message.find("1 requests run"), std::string::npos) << replies_[1].message;
  control_.blocked.store(false);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 3; }));
  EXPECT_EQ(replies_[2].id, 9u);
  EXPECT_EQ(replies_[2].code, StatusCode::kOk);
  EXPECT_EQ(ends_, 2);
}

TEST_F(SchedulerOrdersTest, SoManyFlushesWaitAndNoMore) {
  control_.blocked.store(true);
  generate(1, 4);
  for (std::size_t i = 0; i <= kMaxFlushes; ++i) order(100 + i, AdminAction::kFlushCache, 60'000);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 1; }));
  EXPECT_EQ(replies_[0].id, 100 + kMaxFlushes);
  EXPECT_EQ(replies_[0].code, StatusCode::kResourceExhausted);
  control_.blocked.store(false);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == kMaxFlushes + 1; }));
}

TEST_F(SchedulerOrdersTest, AProfileHasItsStepsWithTheirRows) {
  std::string folder = ::testing::TempDir() + "/steps-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  order(1, AdminAction::kStopProfile, 0, folder);
  order(2, AdminAction::kStartProfile, 0, folder);
  order(3, AdminAction::kStartProfile, 0, folder + "/other");
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 3; }));
  EXPECT_EQ(replies_[0].code, StatusCode::kConflict);
  EXPECT_EQ(replies_[1].code, StatusCode::kOk);
  EXPECT_EQ(replies_[2].code, StatusCode::kConflict);
  generate(1, 5);
  ASSERT_TRUE(listen_until([&] { return ends_ == 1; }));
  order(4, AdminAction::kStopProfile, 0, folder);
  ASSERT_TRUE(listen_until([&] { return replies_.size() == 4; }));
  ASSERT_EQ(replies_[3].code, StatusCode::kOk) << replies_[3].message;
  const auto trace = nlohmann::json::parse(std::ifstream(replies_[3].message));
  int64_t rows = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "step") rows += event["args"]["rows"].get<int64_t>();
  }
  EXPECT_GE(rows, 3 + 4);  // the prompt, and all tokens but the last
  std::filesystem::remove_all(folder);
}

TEST_F(SchedulerOrdersTest, TheHeartbeatCarriesTheNumbers) {
  generate(1, 5);
  ASSERT_TRUE(listen_until([&] { return ends_ == 1 && status_ && status_->steps >= 5; }));
  EXPECT_EQ(metric("num_accepted_requests_total"), 1);
  EXPECT_EQ(metric("num_ended_requests_total"), 1);
  EXPECT_EQ(metric("admitted_prompt_tokens_total"), 3);
  EXPECT_EQ(metric("sampled_tokens_total"), 5);
  EXPECT_EQ(metric("num_retracted_requests_total"), 0);
}

}  // namespace
}  // namespace millrace
