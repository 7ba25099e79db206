// GenerateWorkerHarness: the worker `generate` without a loop, over the fake runner, for the tests of its answers and
// of its commands.
//
// Thread safety: one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "scheduler/testing/fake_runner.h"
#include "stages/generating/workers.h"
#include "stages/testing/recorded_emit.h"

namespace millrace::testing {

class GenerateWorkerHarness : public ::testing::Test {
 protected:
  // Whose model is the fake one; other `parts` as they are.
  void make_over_fake(GenerateParts parts) {
    parts.load = [this](const LoadProgress&) -> Result<std::unique_ptr<Runner>> {
      auto runner = std::make_unique<FakeRunner>(facts_, model_);
      runner_ = runner.get();
      return std::unique_ptr<Runner>(std::move(runner));
    };
    parts.options.eos_token_ids = {model_.eos_token};
    worker_ = make_generate_worker(std::move(parts));
    ASSERT_TRUE(worker_->load([](const std::string&, double) {}).ok());
  }
  // As a loop does, until the worker wants no more.
  void run(int most = 10'000) {
    for (int i = 0; i < most; ++i) {
      if (worker_->tick(0, emit_) == Worker::kNever) return;
    }
    ADD_FAILURE() << "the worker never rests";
  }

  RunnerFacts facts_{1000, 256, 16, 256};  // vocabulary, context, page size, pages
  HashModel model_;
  FakeRunner* runner_ = nullptr;  // of worker_
  std::unique_ptr<Worker> worker_;
  RecordedEmit emit_;
};

}  // namespace millrace::testing
