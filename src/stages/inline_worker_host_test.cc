// InlineWorkerHost that makes and loads its worker aside: events wait meanwhile, calls run on the caller's thread, a
// load that fails is reported, and a busy worker whose progress stands still is seen.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "stages/loop/worker_host.h"

namespace millrace::loop {
namespace {

struct Script {
  std::atomic<bool> may_load{false};
  Status load;
  std::thread::id called_on;
  Pulse pulse;
};

class ScriptWorker : public Worker {
 public:
  explicit ScriptWorker(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  Status load(const LoadProgress& progress) override {
    progress("loading weights", 0.5);
    while (!script_->may_load) std::this_thread::yield();
    return script_->load;
  }
  void start(ReqId id, Value payload, Emit& emit) override {
    script_->called_on = std::this_thread::get_id();
    emit.result(id, std::move(payload));
  }
  void drop(ReqId) override {}
  std::optional<Pulse> pulse() const override { return script_->pulse; }

 private:
  std::shared_ptr<Script> script_;
};

class InlineWorkerHostTest : public ::testing::Test {
 protected:
  void make() {
    host_ = std::make_unique<InlineWorkerHost>(
        [script = script_]() -> Result<std::unique_ptr<Worker>> {
          return std::unique_ptr<Worker>(std::make_unique<ScriptWorker>(script));
        },
        [this] { woken_ = true; });
  }
  void wait_woken() {
    while (!woken_) std::this_thread::yield();
  }
  WorkEvent start(uint64_t id) { return {.kind = WorkEvent::Kind::kStart, .id = {id}, .body = Value("x")}; }

  std::shared_ptr<Script> script_ = std::make_shared<Script>();
  std::atomic<bool> woken_{false};
  std::unique_ptr<InlineWorkerHost> host_;
};

TEST_F(InlineWorkerHostTest, EventsWaitForTheLoadAndCallsAreOnTheCallersThread) {
  make();
  WorkEvent event = start(1);
  EXPECT_FALSE(host_->post(event, 0));
  EXPECT_EQ(host_->state(), WorkerHost::State::kLoading);
  while (host_->loading().action.empty()) std::this_thread::yield();
  EXPECT_EQ(host_->loading().action, "loading weights");
  EXPECT_EQ(host_->loading().fraction, 0.5);
  EXPECT_EQ(host_->run(0), kNoWake);
  script_->may_load = true;
  wait_woken();
  EXPECT_EQ(host_->state(), WorkerHost::State::kReady);
  ASSERT_TRUE(host_->post(event, 0));
  EXPECT_EQ(script_->called_on, std::this_thread::get_id());
  std::vector<WorkOutput> out;
  host_->collect(out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].kind, WorkOutput::Kind::kResult);
}

// What comes to a worker by another way than events is looked for from the start.
TEST_F(InlineWorkerHostTest, AWorkerIsAskedWhatItWantsOnceItIsReady) {
  class Poller : public Worker {
    void start(ReqId, Value, Emit&) override {}
    void drop(ReqId) override {}
    int tick(int64_t, Emit&) override { return 5; }
  };
  InlineWorkerHost host(std::make_unique<Poller>());
  EXPECT_EQ(host.run(100), 105);
  EXPECT_EQ(host.run(102), 105);
  EXPECT_EQ(host.run(105), 110);
}

// A delta takes the same way as all that the worker puts out, so none overtakes another output of its request.
TEST_F(InlineWorkerHostTest, DeltasAndResultsComeInTheWorkersSequence) {
  class Repeater : public Worker {
    void start(ReqId id, Value payload, Emit& emit) override { emit.result(id, std::move(payload)); }
    void tokens(ReqId id, const std::string&, wire::TokenDelta delta, Emit& emit) override {
      emit.tokens(id, std::move(delta));
    }
    void drop(ReqId) override {}
  };
  InlineWorkerHost host(std::make_unique<Repeater>());
  const auto post = [&](int32_t token) {
    Body delta = wire::TokenDelta{.tokens = {token}};
    EXPECT_TRUE(host.post_delta({1}, "generate", delta, 0));
  };
  post(1);
  WorkEvent event = start(1);
  EXPECT_TRUE(host.post(event, 0));
  post(2);
  std::vector<WorkOutput> out;
  host.collect(out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_TRUE(out[0].to_all);
  EXPECT_EQ(std::get<wire::TokenDelta>(out[0].body).tokens, std::vector<int32_t>{1});
  EXPECT_EQ(out[1].kind, WorkOutput::Kind::kResult);
  EXPECT_EQ(std::get<wire::TokenDelta>(out[2].body).tokens, std::vector<int32_t>{2});
}

TEST_F(InlineWorkerHostTest, ALoadThatFailsIsReportedAndNothingIsCalled) {
  script_->load = invalid_argument("no weights");
  script_->may_load = true;
  make();
  wait_woken();
  EXPECT_EQ(host_->state(), WorkerHost::State::kFailed);
  EXPECT_EQ(host_->failure().message(), "no weights");
  WorkEvent event = start(1);
  EXPECT_TRUE(host_->post(event, 0));  // of no use any more
  // The requests that have waited for the load end by it, once.
  std::vector<WorkOutput> out;
  host_->collect(out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].kind, WorkOutput::Kind::kCrash);
  EXPECT_EQ(out[0].error->message(), "no weights");
  host_->collect(out);
  EXPECT_EQ(out.size(), 1u);
  EXPECT_EQ(script_->called_on, std::thread::id());
}

TEST_F(InlineWorkerHostTest, ABusyWorkerWithoutProgressStands) {
  script_->may_load = true;
  make();
  wait_woken();
  EXPECT_EQ(host_->standing_ms(1000), 0);  // idle
  script_->pulse = {.busy = true, .progress = 1};
  EXPECT_EQ(host_->standing_ms(2000), 0);
  EXPECT_EQ(host_->standing_ms(3500), 1500);
  script_->pulse.progress = 2;
  EXPECT_EQ(host_->standing_ms(4000), 0);
  script_->pulse.busy = false;
  EXPECT_EQ(host_->standing_ms(9000), 0);
}

TEST_F(InlineWorkerHostTest, ACloseWaitsForTheLoad) {
  make();
  script_->may_load = true;
  host_->close();
  WorkEvent event = start(1);
  EXPECT_TRUE(host_->post(event, 0));
  EXPECT_EQ(script_->called_on, std::thread::id());
}

}  // namespace
}  // namespace millrace::loop
