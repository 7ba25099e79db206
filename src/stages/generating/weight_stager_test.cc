// One load at a time, the last wanted one counts, and only the wanted bytes are staged. Each load ends by the test.
#include "stages/generating/weight_stager.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace millrace {
namespace {

class FakeModel : public Model {
 public:
  FakeModel(uint64_t version, std::shared_ptr<const WeightTable> weights)
      : Model({.layers = 1}, {0, 1}, version, std::move(weights)) {}
  void embed(std::span<const int32_t>, kernels::Rows, kernels::Ops&) const override {}
  void forward(const Step&, kernels::Rows, Workspace&, kernels::Ops&) const override {}
  void final_norm(kernels::ConstRows, kernels::Rows, kernels::Ops&) const override {}
  void head(kernels::ConstRows, kernels::Rows, kernels::Ops&) const override {}
};

class StagingRunner : public Runner {
 public:
  RunnerFacts facts() const override { return {}; }
  Status submit(Batch) override { return ok_status(); }
  std::optional<BatchResult> poll(int) override { return std::nullopt; }
  Status stage(std::shared_ptr<const Model> model) override {
    staged_ = std::move(model);
    return ok_status();
  }
  void drop_staged() override { staged_.reset(); }
  uint64_t staged_version() const override { return staged_ ? staged_->weight_version() : 0; }

 private:
  std::shared_ptr<const Model> staged_;
};

class WeightStagerTest : public ::testing::Test {
 protected:
  using Weights = Result<std::shared_ptr<const Model>>;
  WeightStagerTest() { log_init("test", LogLevel::kOff); }
  ~WeightStagerTest() override {
    const std::lock_guard lock(mutex_);
    for (auto& [version, load] : loads_) {
      if (!load.done) load.result.set_value(error(StatusCode::kCancelled, "the test ends"));
    }
  }

  // The load of this version ends so; the bytes are named by `sum`.
  void finish(uint64_t version, uint64_t sum) {
    const auto weights = std::make_shared<WeightTable>();
    weights->put("w", {.checksum = sum});
    auto model = std::make_shared<const FakeModel>(version, weights);
    sums_[version] = model->weights_checksum();
    const std::lock_guard lock(mutex_);
    loads_.at(version).done = true;
    loads_.at(version).result.set_value(Weights(std::shared_ptr<const Model>(std::move(model))));
  }
  // On the stager's thread.
  Weights load(uint64_t version) {
    std::unique_lock lock(mutex_);
    std::future<Weights> result = loads_.at(version).result.get_future();
    lock.unlock();
    return result.get();
  }
  void begin(uint64_t version, uint64_t checksum = 0) {
    {
      const std::lock_guard lock(mutex_);
      loads_.try_emplace(version);
    }
    stager_.begin({.command = 100 + version, .path = "/w", .version = version, .checksum = checksum});
  }
  // The next commands that ended, waited for.
  std::vector<WeightStager::Made> made() {
    for (int i = 0; i < 30'000; ++i) {
      if (auto all = stager_.take_made(); !all.empty()) return all;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }

  struct Load {
    std::promise<Weights> result;
    bool done = false;
  };
  std::mutex mutex_;
  std::map<uint64_t, Load> loads_;  // guarded by it
  std::map<uint64_t, uint64_t> sums_;
  StagingRunner runner_;
  WeightStager stager_{[this](const std::string&, uint64_t version) { return load(version); }, runner_};
};

TEST_F(WeightStagerTest, WhatIsMadeIsStagedWithItsChecksum) {
  begin(2);
  EXPECT_TRUE(stager_.busy());
  finish(2, 7);
  const auto all = made();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].command, 102u);
  EXPECT_TRUE(all[0].status.ok());
  EXPECT_EQ(all[0].checksum, sums_[2]);
  EXPECT_EQ(runner_.staged_version(), 2u);
  EXPECT_FALSE(stager_.busy());
}

TEST_F(WeightStagerTest, OtherBytesThanTheWantedOnesAreRefused) {
  begin(2, 12345);
  finish(2, 7);
  const auto all = made();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].status.code(), StatusCode::kConflict);
  EXPECT_NE(all[0].status.message().find("/w has weights with the checksum"), std::string::npos);
  EXPECT_EQ(runner_.staged_version(), 0u);
  begin(3, sums_[2]);
  finish(3, 7);
  EXPECT_TRUE(made().at(0).status.ok());
}

TEST_F(WeightStagerTest, TheLastOfSeveralCounts) {
  begin(2);
  begin(3);
  begin(4);
  const auto superseded = made();  // version 3 was never begun
  ASSERT_EQ(superseded.size(), 1u);
  EXPECT_EQ(superseded[0].command, 103u);
  EXPECT_EQ(superseded[0].status.code(), StatusCode::kCancelled);
  finish(2, 7);
  const auto first = made();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].command, 102u);
  EXPECT_EQ(first[0].status.code(), StatusCode::kCancelled);
  EXPECT_EQ(runner_.staged_version(), 0u);
  finish(4, 7);
  const auto last = made();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_TRUE(last[0].status.ok());
  EXPECT_EQ(runner_.staged_version(), 4u);
}

TEST_F(WeightStagerTest, ADropIsOfOneVersion) {
  begin(2);
  stager_.drop(9);
  finish(2, 7);
  EXPECT_TRUE(made().at(0).status.ok());
  stager_.drop(9);
  EXPECT_EQ(runner_.staged_version(), 2u);
  stager_.drop(2);
  EXPECT_EQ(runner_.staged_version(), 0u);
  begin(3);
  begin(4);
  stager_.drop(4);
  EXPECT_EQ(made().at(0).command, 104u);
  finish(3, 7);
  EXPECT_EQ(made().at(0).status.code(), StatusCode::kCancelled);  // version 4 had taken its place
  EXPECT_FALSE(stager_.busy());
}

}  // namespace
}  // namespace millrace
