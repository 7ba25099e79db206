// A worker on its own thread, as the stage loop sees it: loading, the stall check, its numbers, admin commands.
#include "stages/loop/thread_worker_host.h"
#include "base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "stages/stage.h"

namespace millrace::loop {
namespace {

constexpr int kWaitMs = 30'000;  // generous: the machine may be busy

// What the test controls of its worker, from its own thread.
struct Control {
  std::atomic<bool> loaded{false};
  std::atomic<bool> leave_call{false};  // a tick() that hangs returns
  std::atomic<bool> hang{false};
  std::atomic<bool> busy{false};
  std::atomic<uint64_t> progress{0};
  std::atomic<int> ticks{0};
};

class ControlledWorker : public Worker {
 public:
  explicit ControlledWorker(Control& control) : control_(control) {}
  Status load(const LoadProgress& progress) override {
    progress("loading weights", 0.25);
    while (!control_.loaded.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ok_status();
  }
  void start(ReqId, Value, Emit&) override {}
  void drop(ReqId) override {}
  int tick(int64_t, Emit&) override {
    ++control_.ticks;
    while (control_.hang.load() && !control_.leave_call.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return control_.busy.load() ? 1 : kNever;
  }
  bool describe(wire::StageStatus& status) const override {
    status.pages_total = 64;
    status.metrics = {{"of_the_worker", static_cast<double>(control_.ticks.load())}};
    return true;
  }
  std::optional<Pulse> pulse() const override { return Pulse{control_.busy.load(), control_.progress.load()}; }

 private:
  Control& control_;
};

class ThreadWorkerHostTest : public ::testing::Test {
 protected:
  ~ThreadWorkerHostTest() override { control_.loaded = control_.leave_call = true; }

  void make() {
    host_ = std::make_unique<ThreadWorkerHost>(
        [this]() -> Result<std::unique_ptr<Worker>> {
          return std::unique_ptr<Worker>(std::make_unique<ControlledWorker>(control_));
        },
        [] {});
  }
  static bool wait_for(const std::function<bool()>& what) {
    const int64_t end_ms = monotonic_ms() + kWaitMs;
    while (!what() && monotonic_ms() < end_ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return what();
  }
  void load() {
    make();
    control_.loaded = true;
    ASSERT_TRUE(wait_for([this] { return host_->state() == WorkerHost::State::kReady; }));
  }
  void poke() {  // any event: a tick follows
    WorkEvent event{.kind = WorkEvent::Kind::kStart, .id = {1}};
    ASSERT_TRUE(host_->post(event, 0));
  }

  Control control_;
  std::unique_ptr<ThreadWorkerHost> host_;
};

TEST_F(ThreadWorkerHostTest, LoadingIsReportedAndEventsWaitForIt) {
  make();
  poke();
  ASSERT_TRUE(wait_for([this] { return host_->loading().action == "loading weights"; }));
  EXPECT_EQ(host_->loading().fraction, 0.25);
  EXPECT_EQ(host_->state(), WorkerHost::State::kLoading);
  EXPECT_EQ(host_->waiting(), 1u);
  EXPECT_EQ(control_.ticks.load(), 0);
  control_.loaded = true;
  EXPECT_TRUE(wait_for([this] { return control_.ticks.load() > 0; }));
}

TEST_F(ThreadWorkerHostTest, OneThatIsBusyAndDoesNotMoveStands) {
  load();
  EXPECT_EQ(host_->standing_ms(1'000), 0);
  control_.busy = true;
  poke();
  EXPECT_EQ(host_->standing_ms(2'000), 1'000);  // in calls that end, and without progress all the same
  control_.progress = 5;
  EXPECT_EQ(host_->standing_ms(3'000), 0);
  EXPECT_EQ(host_->standing_ms(3'700), 700);
  control_.busy = false;
  ASSERT_TRUE(wait_for([this] { return host_->standing_ms(4'000) == 0; }));
}

TEST_F(ThreadWorkerHostTest, APauseOfTheProcessDoesNotCount) {
  load();
  EXPECT_EQ(host_->standing_ms(1'000), 0);
  control_.busy = true;
  poke();
  EXPECT_EQ(host_->standing_ms(2'000), 1'000);
  host_->compensate_pause(9'000, 6'500);
  EXPECT_EQ(host_->standing_ms(9'000), 1'500);
  host_->compensate_pause(10'000, 60'000);
  EXPECT_EQ(host_->standing_ms(10'000), 0);
  control_.busy = false;
}

TEST_F(ThreadWorkerHostTest, ALongCallThatMovesDoesNotStand) {
  load();
  control_.hang = true;
  poke();
  ASSERT_TRUE(wait_for([this] { return control_.ticks.load() > 0; }));
  ++control_.progress;
  EXPECT_EQ(host_->standing_ms(1'000), 0);
  ++control_.progress;
  EXPECT_EQ(host_->standing_ms(9'000), 0);
  EXPECT_EQ(host_->standing_ms(10'500), 1'500);  // in a call, though it reports that it is not busy
  control_.leave_call = true;
}

TEST_F(ThreadWorkerHostTest, ItsNumbersAreThoseOfItsLastRest) {
  load();
  wire::StageStatus status;
  host_->describe(status);
  EXPECT_EQ(status.pages_total, 64);
  poke();
  ASSERT_TRUE(wait_for([this] {
    wire::StageStatus now;
    now.metrics = {{"of_the_loop", 1}};
    host_->describe(now);
    return now.metrics.size() == 2 && now.metrics[1].value == 1;
  }));
}

TEST_F(ThreadWorkerHostTest, AdminCommandsAreRepliedByTheWorker) {
  load();
  WorkEvent event{.kind = WorkEvent::Kind::kAdmin, .command = wire::AdminRequest{.id = 7}};
  ASSERT_TRUE(host_->post(event, 0));
  std::vector<WorkOutput> outputs;
  ASSERT_TRUE(wait_for([&] {
    host_->collect(outputs);
    return !outputs.empty();
  }));
  EXPECT_EQ(outputs[0].kind, WorkOutput::Kind::kReply);
  EXPECT_EQ(outputs[0].reply->command, 7u);
  EXPECT_EQ(outputs[0].reply->text.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace millrace::loop
