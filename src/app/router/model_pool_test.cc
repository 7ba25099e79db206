// ModelPool with simulated processes and time.
#include "app/router/model_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/log.h"

namespace millrace {
namespace {

struct Fake {
  ModelProcess::State state = ModelProcess::State::kLoading;
  bool terminated = false;
  std::string error = "exit code 2";
};

class FakeProcess : public ModelProcess {
 public:
  FakeProcess(Fake& fake, std::string socket) : fake_(fake), socket_(std::move(socket)) {}
  State poll() override { return fake_.state; }
  void terminate() override { fake_.terminated = true; }
  void interrupt() override {}
  std::string socket() const override { return socket_; }
  std::string error() const override { return fake_.error; }

 private:
  Fake& fake_;
  const std::string socket_;
};

class ModelPoolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }

  void make(ModelPoolOptions options = {}, std::vector<ServedModel> models = {}) {
    if (models.empty())
      models = {{.name = "a", .bytes = 100}, {.name = "b", .bytes = 100}, {.name = "c", .bytes = 100}};
    pool_ = std::make_unique<ModelPool>(
        std::move(models), std::move(options),
        [this](const ServedModel& model) -> Result<std::unique_ptr<ModelProcess>> {
          starts_ += model.name;
          if (start_fails_) return Status(StatusCode::kInternal, "fork: out of memory");
          fakes_[model.name] = {};
          return std::unique_ptr<ModelProcess>(std::make_unique<FakeProcess>(fakes_[model.name], "/" + model.name));
        });
  }
  std::string model(const std::string& name) { return find_model(*pool_->models(), name)->name; }
  // The answer, once it is there.
  std::shared_ptr<std::optional<Result<ModelPool::Use>>> ask(const std::string& name) {
    auto answer = std::make_shared<std::optional<Result<ModelPool::Use>>>();
    pool_->acquire(
        model(name), [this] { return gone_; }, [answer](Result<ModelPool::Use> use) { *answer = use; });
    return answer;
  }
  void tick(int64_t ms = 10) { pool_->tick(now_ms_ += ms); }
  void finish(const std::string& name) {
    fakes_[name].state = ModelProcess::State::kReady;
    tick();
  }
  void end(const std::string& name) {
    fakes_[name].state = ModelProcess::State::kEnded;
    tick();
  }
  // Loads it and lets it be idle.
  void use(const std::string& name) {
    auto answer = ask(name);
    tick();
    if (!*answer) finish(name);
    ASSERT_TRUE(answer->has_value() && (*answer)->ok());
  }
  ModelStatus status(const std::string& name) {
    for (const ModelStatus& each : pool_->statuses()) {
      if (each.name == name) return each;
    }
    return {};
  }

  std::map<std::string, Fake> fakes_;
  std::string starts_;
  int64_t now_ms_ = 1'000'000;
  bool gone_ = false;
  bool start_fails_ = false;
  std::unique_ptr<ModelPool> pool_;  // first to go
};

TEST_F(ModelPoolTest, LoadsWhatIsAskedForAndLetsRequestsWait) {
  make();
  tick();
  EXPECT_EQ(starts_, "");
  auto first = ask("a"), second = ask("a");
  tick();
  EXPECT_EQ(starts_, "a");
  EXPECT_FALSE(first->has_value());
  EXPECT_EQ(status("a").waiting, 2);
  EXPECT_EQ(status("a").state, ModelState::kLoading);
  finish("a");
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_EQ((**first)->socket, "/a");
  EXPECT_EQ(status("a").running, 2);
  first.reset();
  second.reset();
  EXPECT_EQ(status("a").running, 0);
  EXPECT_TRUE(ask("a")->has_value());  // at once
  EXPECT_EQ(starts_, "a");
}

TEST_F(ModelPoolTest, AFailedLoadConcernsItsRequestsAlone) {
  make();
  use("b");
  auto request = ask("a");
  tick();
  fakes_["a"].error = "a.gguf: it has 3 bytes";
  end("a");
  ASSERT_TRUE(request->has_value());
  EXPECT_EQ((*request)->status().code(), StatusCode::kUnavailable);
  EXPECT_NE((*request)->status().message().find("a.gguf: it has 3 bytes"), std::string::npos);
  EXPECT_EQ(status("a").state, ModelState::kFailed);
  // Not tried at each request, but after a while, or when a person asks.
  EXPECT_EQ((*ask("a"))->status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(starts_, "ba");
  EXPECT_TRUE((*ask("b"))->ok());
  tick(kRetryPauseMs);
  auto again = ask("a");
  tick();
  EXPECT_EQ(starts_, "baa");
  end("a");
  pool_->load(model("a"));
  tick();
  EXPECT_EQ(starts_, "baaa");
  EXPECT_EQ(status("a").failures, 2);
}

TEST_F(ModelPoolTest, AnIdleModelGoesAfterItsTime) {
  make({.ttl_ms = 1000});
  auto held = ask("a");
  tick();
  finish("a");
  tick(5000);
  EXPECT_FALSE(fakes_["a"].terminated);  // it is used
  held.reset();
  tick(10);
  tick(999);
  EXPECT_FALSE(fakes_["a"].terminated);
  tick(1);
  EXPECT_TRUE(fakes_["a"].terminated);
  EXPECT_EQ(status("a").state, ModelState::kUnloading);
  auto late = ask("a");  // waits until it is gone, and is loaded again
  tick();
  EXPECT_EQ(starts_, "a");
  end("a");
  EXPECT_EQ(starts_, "aa");
  finish("a");
  EXPECT_TRUE(late->has_value() && (*late)->ok());
  EXPECT_EQ(status("a").expirations, 1);
}

TEST_F(ModelPoolTest, TheLeastRecentlyUsedIsEvicted) {
  make({.most_loaded = 2});
  use("a");
  use("b");
  tick();
  use("a");
  auto request = ask("c");
  tick();
  EXPECT_TRUE(fakes_["b"].terminated);
  EXPECT_FALSE(fakes_["a"].terminated);
  EXPECT_EQ(starts_, "ab");  // it waits until the memory is free
  end("b");
  EXPECT_EQ(starts_, "abc");
  finish("c");
  EXPECT_TRUE(request->has_value());
  EXPECT_EQ(status("b").evictions, 1);
}

TEST_F(ModelPoolTest, WhatIsUsedOrPinnedStaysAndTheRequestWaits) {
  make({.memory_bytes = 250},
       {{.name = "a", .bytes = 100}, {.name = "b", .bytes = 100, .pinned = true}, {.name = "c", .bytes = 100}});
  tick();
  EXPECT_EQ(starts_, "b");  // pinned: from the start
  finish("b");
  auto held = ask("a");
  tick();
  finish("a");
  auto request = ask("c");
  for (int i = 0; i < 5; ++i) tick(1000);
  EXPECT_EQ(starts_, "ba");
  EXPECT_FALSE(fakes_["a"].terminated || fakes_["b"].terminated);
  held.reset();
  tick();
  EXPECT_TRUE(fakes_["a"].terminated);
  EXPECT_FALSE(fakes_["b"].terminated);
  end("a");
  finish("c");
  EXPECT_TRUE(request->has_value());
}

TEST_F(ModelPoolTest, APinnedModelThatDoesNotLoadIsTriedAgainByItself) {
  make({}, {{.name = "a"}, {.name = "b", .pinned = true}});
  tick();
  EXPECT_EQ(starts_, "b");
  end("b");
  EXPECT_EQ(status("b").state, ModelState::kFailed);
  tick(kRetryPauseMs - 1);
  EXPECT_EQ(starts_, "b");
  start_fails_ = true;
  tick(1);
  EXPECT_EQ(starts_, "bb");
  EXPECT_EQ(status("b").failures, 2);
  start_fails_ = false;
  tick(kRetryPauseMs);
  EXPECT_EQ(starts_, "bbb");
  // What a person has unloaded stays so.
  EXPECT_TRUE(pool_->unload("b"));
  end("b");
  tick(kRetryPauseMs);
  EXPECT_EQ(starts_, "bbb");
}

// Those that are pulled at their first load.
TEST_F(ModelPoolTest, ASizeThatIsKnownOnceLoadedCountsFromThen) {
  constexpr uint64_t kGib = 1ULL << 30;
  const auto describe = [](ServedModel& model) { model.bytes = 8 * kGib; };
  make({.memory_bytes = 10 * kGib, .describe = describe}, {{.name = "a"}, {.name = "b"}, {.name = "c", .bytes = kGib}});
  use("a");
  EXPECT_EQ((*pool_->models())[0].bytes, 8 * kGib);
  auto known = ask("c");  // 9 GiB and their buffers are too many
  tick();
  EXPECT_TRUE(fakes_["a"].terminated);
  EXPECT_EQ(starts_, "a");
  end("a");
  finish("c");
  EXPECT_TRUE(known->has_value());
  known.reset();
  auto unknown = ask("b");  // of any size
  tick();
  EXPECT_TRUE(fakes_["c"].terminated);
  end("c");
  finish("b");
  unknown.reset();
  EXPECT_EQ(starts_, "acb");
  auto again = ask("a");
  tick();
  EXPECT_TRUE(fakes_["b"].terminated);
}

TEST_F(ModelPoolTest, TheSizeOfWhatHasJustBeenLoadedCountsForTheNextInTheSameTick) {
  const auto describe = [](ServedModel& model) { model.bytes = 100; };
  make({.memory_bytes = 250, .describe = describe}, {{.name = "a"}, {.name = "b", .bytes = 150}});
  auto a = ask("a");
  tick();
  auto b = ask("b");
  finish("a");
  EXPECT_TRUE(a->has_value());
  EXPECT_EQ(starts_, "a");
}

TEST_F(ModelPoolTest, AnUnknownSizeIsTriedBesidePinnedModels) {
  make({.memory_bytes = 250},
       {{.name = "a", .bytes = 100, .pinned = true}, {.name = "b"}, {.name = "c", .bytes = 100}});
  tick();
  finish("a");
  use("c");
  auto request = ask("b");
  tick();
  EXPECT_TRUE(fakes_["c"].terminated);
  end("c");
  EXPECT_EQ(starts_, "acb");
  // Without a limit only the system's memory counts, of which none is known to be needed.
  make({}, {{.name = "a", .bytes = 100}, {.name = "b"}});
  starts_.clear();
  use("a");
  use("b");
  EXPECT_EQ(starts_, "ab");
  EXPECT_EQ(status("a").state, ModelState::kLoaded);
}

TEST_F(ModelPoolTest, MemoryOfTheSystemCounts) {
  uint64_t available = 1000;
  make({.available_bytes = [&available] { return available; }});
  use("a");
  available = 100;  // less than 1.15 times the model
  auto request = ask("b");
  tick();
  EXPECT_TRUE(fakes_["a"].terminated);
  end("a");
  EXPECT_EQ(starts_, "ab");  // alone it is tried in any case
}

TEST_F(ModelPoolTest, OneLoadsAtATimeTheLongestWaitingFirst) {
  make();
  auto b = ask("b");
  tick();
  auto c = ask("c");
  tick();
  auto a = ask("a");
  tick();
  EXPECT_EQ(starts_, "b");
  finish("b");
  EXPECT_EQ(starts_, "bc");
  finish("c");
  EXPECT_EQ(starts_, "bca");
}

TEST_F(ModelPoolTest, WaitingHasLimits) {
  make({.wait_ms = 3000});
  std::vector<std::shared_ptr<std::optional<Result<ModelPool::Use>>>> waiting;
  for (std::size_t i = 0; i < kMaxWaitingForModel; ++i) waiting.push_back(ask("a"));
  EXPECT_EQ((*ask("a"))->status().code(), StatusCode::kResourceExhausted);
  tick();
  tick(2999);
  EXPECT_FALSE(waiting.front()->has_value());
  tick(1);
  for (const auto& each : waiting) {
    ASSERT_TRUE(each->has_value());
    EXPECT_EQ((*each)->status().code(), StatusCode::kDeadline);
  }
  EXPECT_EQ(status("a").waiting, 0);
  // A client that left does not wait any more.
  auto request = ask("b");
  gone_ = true;
  tick();
  EXPECT_EQ(status("b").waiting, 0);
  EXPECT_FALSE(request->has_value());
}

TEST_F(ModelPoolTest, UnloadingOnRequestAndACrash) {
  make();
  EXPECT_FALSE(pool_->unload(model("a")));
  use("a");
  EXPECT_TRUE(pool_->unload(model("a")));
  EXPECT_TRUE(fakes_["a"].terminated);
  end("a");
  EXPECT_EQ(status("a").state, ModelState::kUnloaded);
  use("a");
  end("a");  // by itself
  EXPECT_EQ(status("a").state, ModelState::kUnloaded);
  EXPECT_EQ(starts_, "aa");
  use("a");
  EXPECT_EQ(starts_, "aaa");
}

TEST_F(ModelPoolTest, AtTheEndWaitingRequestsAreRefused) {
  make();
  use("b");
  auto request = ask("a");
  tick();
  pool_->shut_down();
  EXPECT_EQ((*request)->status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(fakes_["a"].terminated && fakes_["b"].terminated);
  EXPECT_EQ((*ask("b"))->status().code(), StatusCode::kUnavailable);
  end("a");
  end("b");
  EXPECT_FALSE(pool_->has_processes());
}

TEST_F(ModelPoolTest, ATimeToLiveMayBeOfOneModel) {
  make({.ttl_ms = 5000}, {{.name = "a"}, {.name = "b", .ttl_s = 1}, {.name = "c", .ttl_s = 0}});
  for (const char* name : {"a", "b", "c"}) use(name);
  tick();
  tick(2000);
  EXPECT_EQ(status("a").state, ModelState::kLoaded);
  EXPECT_TRUE(fakes_["b"].terminated);
  end("b");
  tick(5000);
  EXPECT_TRUE(fakes_["a"].terminated);
  end("a");
  tick(600'000);
  EXPECT_EQ(status("c").state, ModelState::kLoaded);  // 0: never
}

TEST_F(ModelPoolTest, ModelsAndNamesComeAndGo) {
  make();
  use("a");
  EXPECT_EQ(pool_->add({.name = "a"}).code(), StatusCode::kConflict);
  ASSERT_TRUE(pool_->add({.name = "d", .aliases = {"delta", "b"}}).ok());  // another has the name b
  ASSERT_TRUE(pool_->add_alias("d", "dee").ok());
  EXPECT_EQ(pool_->add_alias("d", "a").code(), StatusCode::kConflict);
  EXPECT_EQ(pool_->add_alias("x", "y").code(), StatusCode::kNotFound);
  EXPECT_EQ(model("delta"), "d");
  EXPECT_EQ(model("dee"), "d");
  EXPECT_EQ(model("b"), "b");
  const ModelPool::Now now = pool_->now();
  ASSERT_EQ(now.models->size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ((*now.models)[i].name, now.statuses[i].name);
  ASSERT_TRUE(pool_->remove_alias("dee").ok());
  EXPECT_EQ(find_model(*pool_->models(), "dee"), nullptr);
  auto waits = ask("d");
  EXPECT_EQ(pool_->remove({"d"}).code(), StatusCode::kConflict);
  tick();
  finish("d");
  EXPECT_EQ(pool_->remove({"d"}).code(), StatusCode::kConflict);
  EXPECT_TRUE(pool_->unload("d"));
  end("d");
  EXPECT_TRUE((*waits)->ok());  // its use outlives the model
  EXPECT_TRUE(pool_->remove({"d"}).ok());
  waits.reset();
  EXPECT_EQ(pool_->remove({"d"}).code(), StatusCode::kNotFound);
  EXPECT_EQ(now.models->size(), 4u);  // what was given stays as it was
  bool refused = false;
  pool_->acquire("d", nullptr,
                 [&](const Result<ModelPool::Use>& use) { refused = use.status().code() == StatusCode::kNotFound; });
  EXPECT_TRUE(refused);
  EXPECT_EQ(status("a").state, ModelState::kLoaded);
}

// Such as two names of the same files.
// As one whose files could not be removed comes back.
TEST_F(ModelPoolTest, APinnedModelIsPinnedWhenItComesLater) {
  make({.ttl_ms = 100});
  ASSERT_TRUE(pool_->add({.name = "d", .bytes = 100, .pinned = true}).ok());
  tick();
  EXPECT_EQ(starts_, "d");
  finish("d");
  tick(1000);
  EXPECT_FALSE(fakes_["d"].terminated);
  EXPECT_TRUE(status("d").pinned);
}

TEST_F(ModelPoolTest, ModelsAreRemovedTogetherOrNotAtAll) {
  make();
  use("a");
  EXPECT_EQ(pool_->remove({"b", "a"}).code(), StatusCode::kConflict);
  EXPECT_EQ(pool_->models()->size(), 3u);
  auto waits = ask("c");
  EXPECT_EQ(pool_->remove({"b", "c"}).code(), StatusCode::kConflict);
  EXPECT_TRUE(pool_->unload("a"));
  end("a");
  EXPECT_EQ(pool_->remove({"b", "x"}).code(), StatusCode::kNotFound);
  EXPECT_TRUE(pool_->remove({"b", "a"}).ok());
  ASSERT_EQ(pool_->models()->size(), 1u);
  EXPECT_EQ(pool_->models()->front().name, "c");
}

}  // namespace
}  // namespace millrace
