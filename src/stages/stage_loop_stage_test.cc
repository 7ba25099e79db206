// Stage loops on threads, over mailboxes and the local relay: the same bytes; workers that load, stall and crash.
#include "stages/stage_loop_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "examples/workers/workers.h"
#include "relay/local/local_relay.h"
#include "stages/testing/fanin.h"

namespace millrace::testing {
namespace {

// A pipeline in this process, with a coordinator on the test's own thread.
class Threads : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }
  Threads() { add_example_workers(library_); }

  void begin(std::vector<StageSpec> stages, int64_t stalled_ms = loop::kWorkerStalledMs) {
    stages_ = std::move(stages);
    coordinator_relay_ = make_local_relay({}).value();
    to_coordinator_ = make_local_mailbox();
    for (const StageSpec& spec : stages_) boxes_[spec.name] = make_local_mailbox();
    coordinator_ = std::make_unique<MiniCoordinator>(
        stages_, stages_[0].name, *coordinator_relay_, "local",
        [this](const std::string& stage, uint32_t, wire::Message message) {
          static_cast<void>(boxes_.at(stage).outbox->send(message).ok());
        },
        60'000);  // a lease that holds on any machine
    for (const StageSpec& spec : stages_) {
      StageLoopConfig config = make_loop_config(stages_, stages_[0].name, spec.name).value();
      config.self.incarnation = 1;
      config.coordinator = coordinator_->self();
      config.stalled_ms = stalled_ms;
      StageLoopStageEnv env;
      env.inbox = std::move(boxes_.at(spec.name).inbox);
      env.coordinator = to_coordinator_.outbox;
      env.connect = [this](const wire::Peer& peer) -> Result<std::shared_ptr<Outbox>> {
        return boxes_.at(peer.stage).outbox;
      };
      relays_.emplace_back(make_local_relay({.credits = 4}).value());
      env.relays = {{"local", relays_.back()}};
      auto stage = StageLoopStage::make(config, library_, std::move(env));
      ASSERT_TRUE(stage.ok()) << stage.status().to_string();
      loops_.push_back(std::move(stage).value());
      threads_.emplace_back([loop = loops_.back().get()] { loop->run(); });
    }
  }
  bool pump_until(const std::function<bool()>& done, int64_t limit_ms = 60'000) {
    const int64_t until_ms = monotonic_ms() + limit_ms;
    while (!done() && monotonic_ms() < until_ms) {
      for (int i = 0; i < 256; ++i) {
        const auto message = to_coordinator_.inbox->receive(i == 0 ? 2 : 0);
        if (!message) break;
        if (const auto* status = std::get_if<wire::StageStatus>(&*message)) last_[status->stage] = *status;
        if (const auto* batch = std::get_if<wire::ChunkBatch>(&*message)) chunks_ += batch->chunks.size();
        coordinator_->handle(*message, monotonic_ms());
      }
      coordinator_->tick(monotonic_ms());
    }
    return done();
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void TearDown() override {
    for (auto& loop : loops_) loop->request_stop();
    join();
    loops_.clear();
    EXPECT_TRUE(relays_empty());
  }
  bool relays_empty() const {
    return std::all_of(relays_.begin(), relays_.end(), [](const auto& relay) {
      const RelayBooks books = relay->books();
      return books.puts == 0 && books.gets == 0 && books.held_bytes == 0 && books.lent_parts == 0;
    });
  }

  Library library_;
  std::vector<StageSpec> stages_;
  std::vector<std::shared_ptr<Relay>> relays_;
  std::unique_ptr<Relay> coordinator_relay_;
  LocalMailbox to_coordinator_;
  std::map<std::string, LocalMailbox> boxes_;
  std::unique_ptr<MiniCoordinator> coordinator_;
  std::vector<std::unique_ptr<StageLoopStage>> loops_;
  std::vector<std::thread> threads_;
  std::map<std::string, wire::StageStatus> last_;
  std::size_t chunks_ = 0;  // that the coordinator got
};

StageSpec terminal(const char* worker) {
  StageSpec spec;
  spec.name = "only";
  spec.worker = worker;
  spec.terminal = true;
  spec.args = ValueMap{};
  return spec;
}

TEST_F(Threads, EveryByteIsTheOracles) {
  const std::vector<FaninCase> cases = fanin_cases();
  begin(fanin_stages());
  ASSERT_TRUE(pump_until([&] { return coordinator_->all_up(8); }));
  constexpr uint64_t kRounds = 5;
  for (uint64_t i = 0; i < kRounds * cases.size(); ++i) {
    const FaninCase& one = cases[i % cases.size()];
    coordinator_->submit(i + 1, one.inputs, one.terminals, 60'000, monotonic_ms());
  }
  ASSERT_TRUE(pump_until([&] { return coordinator_->idle(); }));
  for (uint64_t i = 0; i < kRounds * cases.size(); ++i) {
    SCOPED_TRACE(i);
    expect_answer(coordinator_->outcomes().at(i + 1), cases[i % cases.size()]);
  }
  coordinator_->shut_down(5000);
  join();
  for (auto& loop : loops_) {
    EXPECT_TRUE(loop->end_status().ok());
    EXPECT_EQ(loop->books().requests, 0u);
  }
}

TEST_F(Threads, AbortsWhileItWorks) {
  std::vector<StageSpec> stages = fanin_stages(1);
  begin(stages);
  ASSERT_TRUE(pump_until([&] { return coordinator_->all_up(8); }));
  const Value inputs =
      args({{"text", "long"}, {"max_tokens", 20'000}, {"modalities", ValueList{Value("text"), Value("audio")}}});
  for (uint64_t id = 1; id <= 10; ++id) {
    coordinator_->submit(id, inputs, {"decode", "code2wav"}, 60'000, monotonic_ms());
  }
  // A request whose chunks come is at work in every stage before the terminal.
  ASSERT_TRUE(pump_until([&] { return chunks_ > 0; }));
  for (uint64_t id = 1; id <= 10; ++id) coordinator_->cancel(id);
  ASSERT_TRUE(pump_until([&] { return coordinator_->idle(); }));  // every stage has acknowledged
  for (const auto& [id, outcome] : coordinator_->outcomes()) EXPECT_EQ(outcome.ends, 1);
  EXPECT_TRUE(pump_until([&] { return relays_empty(); }));
}

TEST_F(Threads, AWorkerThatTakesLongIsReportedAsStalled) {
  std::atomic<bool> go = false;
  library_.workers["slow"] = [&go](const Value&, const Library::WorkerSlot&) -> Result<std::unique_ptr<Worker>> {
    return make_function_worker([&go](ReqId, Value payload) -> Result<Value> {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return payload;
    });
  };
  begin({terminal("slow")}, 100);
  ASSERT_TRUE(pump_until([&] { return coordinator_->all_up(1); }));
  coordinator_->submit(1, args({{"text", "x"}}), {"only"}, 60'000, monotonic_ms());
  EXPECT_TRUE(pump_until([&] { return last_["only"].state == wire::StageState::kStalled; }));
  coordinator_->cancel(1);
  go = true;
  EXPECT_TRUE(pump_until([&] { return last_["only"].state == wire::StageState::kReady; }));
  EXPECT_TRUE(pump_until([&] { return coordinator_->idle(); }));
}

TEST_F(Threads, AWorkerIsMadeWhileTheStageAnswers) {
  std::atomic<bool> go = false;
  library_.workers["loading"] = [&go](const Value&, const Library::WorkerSlot&) -> Result<std::unique_ptr<Worker>> {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return make_function_worker([](ReqId, Value payload) -> Result<Value> { return payload; });
  };
  begin({terminal("loading")});
  EXPECT_TRUE(pump_until([&] { return last_["only"].state == wire::StageState::kLoading && coordinator_->all_up(1); }));
  coordinator_->submit(1, args({{"text", "x"}}), {"only"}, 60'000, monotonic_ms());
  go = true;
  EXPECT_TRUE(pump_until([&] { return coordinator_->idle(); }));
  EXPECT_TRUE(coordinator_->outcomes().at(1).status.ok());
  EXPECT_TRUE(pump_until([&] { return last_["only"].state == wire::StageState::kReady; }));
}

TEST_F(Threads, AWorkerThatCannotBeMadeEndsTheStage) {
  std::atomic<bool> go = false;
  library_.workers["broken"] = [&go](const Value&, const Library::WorkerSlot&) -> Result<std::unique_ptr<Worker>> {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return invalid_argument("no such model");
  };
  begin({terminal("broken")});
  ASSERT_TRUE(pump_until([&] { return coordinator_->all_up(1); }));
  go = true;
  EXPECT_TRUE(pump_until([&] { return last_["only"].state == wire::StageState::kFailed; }));
  EXPECT_NE(last_["only"].message.find("no such model"), std::string::npos);
  join();
  EXPECT_EQ(loops_[0]->end_status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Threads, MoreEventsAndOutputsThanTheQueuesHold) {
  library_.workers["many"] = [](const Value&, const Library::WorkerSlot&) -> Result<std::unique_ptr<Worker>> {
    class Many : public Worker {
     public:
      void start(ReqId id, Value, Emit& emit) override {
        for (int64_t n = 0; n < 3000; ++n) emit.chunk(id, args({{"n", n}}));
        emit.result(id, Value(1));
      }
      void drop(ReqId) override {}
    };
    return std::unique_ptr<Worker>(std::make_unique<Many>());
  };
  begin({terminal("many")});
  ASSERT_TRUE(pump_until([&] { return coordinator_->all_up(1); }));
  for (uint64_t id = 1; id <= 20; ++id) coordinator_->submit(id, args({{"t", 1}}), {"only"}, 60'000, monotonic_ms());
  EXPECT_TRUE(pump_until([&] { return coordinator_->idle(); }));
  for (const auto& [id, outcome] : coordinator_->outcomes()) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    EXPECT_EQ(outcome.chunks.at("only").size(), 3000u);
  }
}

TEST_F(Threads, AnUnknownWorkerIsAnError) {
  StageLoopStageEnv env;
  env.inbox = std::move(make_local_mailbox().inbox);
  StageLoopConfig config;
  config.spec = terminal("unknown");
  EXPECT_EQ(StageLoopStage::make(config, library_, std::move(env)).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace::testing
