// The scheduler stage end to end through local mailboxes, over the fake runner whose text is a hash of all it was fed.
#include "stages/scheduler_stage.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/log.h"
#include "scheduler/testing/fake_runner.h"

namespace millrace {
namespace {

using testing::FakeRunner;
using testing::HashModel;
using wire::FinishReason;
using wire::StageState;

constexpr uint64_t kIncarnation = 4;
constexpr RunnerFacts kFacts{1000, 256, 16, 256};  // vocabulary, context, page size, pages

struct Outcome {
  int starts = 0;
  std::vector<int32_t> tokens;
  std::vector<wire::Finish> ends;
};

class SchedulerStageTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  void start(LoadRunner load) {
    LocalMailbox in = make_local_mailbox();
    to_stage_ = in.outbox;
    SchedulerOptions options;
    options.eos_token_ids = {HashModel{}.eos_token};
    stage_ = std::make_unique<SchedulerStage>(options, std::move(load), std::move(in.inbox), out_.outbox, kIncarnation);
    thread_ = std::thread([this] { stage_->run(); });
  }
  // `step_ms`: how long each step takes, so that there is a moment to come in between.
  static LoadRunner fake(HashModel model = {}, int step_ms = 0) {
    struct Slow : FakeRunner {
      using FakeRunner::FakeRunner;
      int step_ms = 0;
      std::optional<BatchResult> poll(int timeout_ms) override {
        std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
        return FakeRunner::poll(timeout_ms);
      }
    };
    return [model, step_ms](const LoadProgress&) -> Result<std::unique_ptr<Runner>> {
      auto runner = std::make_unique<Slow>(kFacts, model);
      runner->step_ms = step_ms;
      return std::unique_ptr<Runner>(std::move(runner));
    };
  }
  void TearDown() override { stop(); }
  void stop() {
    if (!thread_.joinable()) return;
    stage_->request_stop();
    thread_.join();
  }

  void send(wire::Message message) { ASSERT_TRUE(to_stage_->send(message).ok()); }
  static wire::TokenizedRequest request(uint64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
    wire::TokenizedRequest out;
    out.id = ReqId{id};
    out.prompt = std::move(prompt);
    out.sampling.max_tokens = max_tokens;
    out.sampling.seed = id * 7;
    return out;
  }
  // What the hash model says of this request, without pages, batches or a scheduler.
  static std::vector<int32_t> expected(const wire::TokenizedRequest& request, const HashModel& model) {
    std::vector<int32_t> all = request.prompt, out;
    while (static_cast<int32_t>(out.size()) < request.sampling.max_tokens) {
      const int32_t token = model.next(all, 1, request.sampling.temperature, request.sampling.seed);
      if (token == model.eos_token) break;
      all.push_back(token);
      out.push_back(token);
    }
    return out;
  }

  // Takes in one message of the stage, waiting up to five seconds.
  bool listen(int timeout_ms = 5000) {
    const auto message = out_.inbox->receive(timeout_ms);
    if (!message) return false;
    if (const auto* status = std::get_if<wire::StageStatus>(&*message)) {
      EXPECT_EQ(status->stage, "scheduler");
      EXPECT_EQ(status->incarnation, kIncarnation);
      beats_.push_back(*status);
      return true;
    }
    for (const wire::TokenDelta& delta : std::get<wire::TokenBatch>(*message).deltas) {
      Outcome& outcome = outcomes_[delta.id.value];
      EXPECT_TRUE(outcome.ends.empty()) << "request " << delta.id.value << " spoke after its end";
      outcome.starts += delta.start ? 1 : 0;
      outcome.tokens.insert(outcome.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      if (delta.finish) outcome.ends.push_back(*delta.finish);
    }
    return true;
  }
  template <typename Condition>
  bool listen_until(Condition condition) {
    while (!condition()) {
      if (!listen()) return false;
    }
    return true;
  }
  std::size_t ended() const {
    std::size_t count = 0;
    for (const auto& [id, outcome] : outcomes_) count += outcome.ends.size();
    return count;
  }

  LocalMailbox out_ = make_local_mailbox();
  std::shared_ptr<Outbox> to_stage_;
  std::unique_ptr<SchedulerStage> stage_;
  std::thread thread_;
  std::vector<wire::StageStatus> beats_;
  std::map<uint64_t, Outcome> outcomes_;
};

TEST_F(SchedulerStageTest, AModelThatCannotBeLoadedIsSaid) {
  start([](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
    progress("reading", 0.5);
    return Status(StatusCode::kNotFound, "/no/such/model has no config.json");
  });
  thread_.join();
  while (listen(0)) {
  }
  ASSERT_FALSE(beats_.empty());
  EXPECT_EQ(beats_.front().state, StageState::kLoading);
  EXPECT_EQ(beats_.back().state, StageState::kFailed);
  EXPECT_EQ(beats_.back().message, "/no/such/model has no config.json");
  EXPECT_EQ(stage_->load_status().code(), StatusCode::kNotFound);
}

TEST_F(SchedulerStageTest, LoadingIsHeardOfWhileItLasts) {
  std::atomic<bool> go_on{false};
  start([&](const LoadProgress& progress) -> Result<std::unique_ptr<Runner>> {
    progress("loading weights", 0.25);
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return fake()(progress);
  });
  ASSERT_TRUE(listen_until([&] { return beats_.size() >= 3; }));
  for (const auto& beat : beats_) EXPECT_EQ(beat.state, StageState::kLoading);
  EXPECT_EQ(beats_.back().message, "loading weights");
  EXPECT_EQ(beats_.back().progress, 0.25);
  send(request(1, {5, 6, 7}, 4));  // comes early, and is served later
  go_on = true;
  ASSERT_TRUE(listen_until([&] { return ended() == 1; }));
  ASSERT_TRUE(listen_until([&] { return beats_.back().state == StageState::kReady && beats_.back().steps > 0; }));
  EXPECT_EQ(beats_.back().pages_total, kFacts.page_count);
  EXPECT_EQ(beats_.back().page_size, kFacts.page_size);
  EXPECT_EQ(beats_.back().running, 0);
  stop();
  EXPECT_TRUE(stage_->load_status().ok());
}

TEST_F(SchedulerStageTest, RequestsAreServedAsTheModelSays) {
  const HashModel model;
  start(fake(model));
  std::map<uint64_t, std::vector<int32_t>> wanted;
  for (uint64_t id = 1; id <= 12; ++id) {
    std::vector<int32_t> prompt{3, 1, 4, 1, 5, 9, 2, 6};  // a shared beginning
    for (uint64_t i = 0; i < id * 5; ++i) prompt.push_back(static_cast<int32_t>(10 + id + i));
    const auto in = request(id, prompt, 60);
    wanted[id] = expected(in, model);
    send(in);
  }
  send(wire::TextBatch{});  // not for this stage: ignored
  ASSERT_TRUE(listen_until([&] { return ended() == wanted.size(); }));
  for (const auto& [id, tokens] : wanted) {
    EXPECT_EQ(outcomes_[id].starts, 1);
    EXPECT_EQ(outcomes_[id].tokens, tokens) << id;
    const bool whole = tokens.size() == 60;
    EXPECT_EQ(outcomes_[id].ends.at(0).reason, whole ? FinishReason::kLength : FinishReason::kStop) << id;
  }
}

TEST_F(SchedulerStageTest, BadRequestsAreRefusedAndAbortsEnd) {
  HashModel endless;
  endless.eos_one_in = 0;
  start(fake(endless, 10));
  send(request(1, std::vector<int32_t>(300, 1), 4));  // longer than the context
  send(request(2, {1, 2, 3}, 200));
  ASSERT_TRUE(listen_until([&] { return outcomes_[2].tokens.size() > 2 && !outcomes_[1].ends.empty(); }));
  EXPECT_EQ(outcomes_[1].starts, 0);
  EXPECT_EQ(outcomes_[1].ends[0].reason, FinishReason::kError);
  send(wire::AbortRequest{ReqId{2}});
  send(wire::AbortRequest{ReqId{99}});
  ASSERT_TRUE(listen_until([&] { return !outcomes_[2].ends.empty(); }));
  EXPECT_EQ(outcomes_[2].ends[0].reason, FinishReason::kAborted);
  EXPECT_LT(outcomes_[2].tokens.size(), 200u);
}

TEST_F(SchedulerStageTest, AStopWhileBusyEndsEveryRequest) {
  HashModel endless;
  endless.eos_one_in = 0;
  start(fake(endless, 10));
  for (uint64_t id = 1; id <= 5; ++id) send(request(id, {1, 2, static_cast<int32_t>(id)}, 250));
  ASSERT_TRUE(listen_until([&] { return outcomes_.size() == 5 && outcomes_[1].tokens.size() > 1; }));
  stop();
  while (listen(0)) {
  }
  for (const auto& [id, outcome] : outcomes_) {
    ASSERT_EQ(outcome.ends.size(), 1u) << id;
    EXPECT_EQ(outcome.ends[0].code, StatusCode::kUnavailable) << id;
  }
}

TEST_F(SchedulerStageTest, ARunnerThatNeverAnswersDoesNotHoldUpTheStop) {
  start([](const LoadProgress&) -> Result<std::unique_ptr<Runner>> {
    struct Stuck : FakeRunner {
      using FakeRunner::FakeRunner;
      std::optional<BatchResult> poll(int timeout_ms) override {
        std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
        return std::nullopt;
      }
    };
    return std::unique_ptr<Runner>(std::make_unique<Stuck>(kFacts, HashModel{}));
  });
  send(request(1, {1, 2, 3}, 5));
  ASSERT_TRUE(listen_until([&] { return outcomes_[1].starts == 1; }));
  // A step that does not come back is visible: heartbeats go on, with steps standing still.
  const std::size_t before = beats_.size();
  ASSERT_TRUE(listen_until([&] { return beats_.size() >= before + 2; }));
  EXPECT_EQ(beats_.back().steps, 0u);
  EXPECT_EQ(beats_.back().running, 1);
  const int64_t begin_ms = monotonic_ms();
  stop();
  EXPECT_LT(monotonic_ms() - begin_ms, 4000);
}

}  // namespace
}  // namespace millrace
