// For tests of chains: requests with pages of their own, and a fixture that runs them through a chain of a golden
// model, many batches at a time or one after the other. Included by *_test.cc only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runner/testing/chain_testing.h"
#include "runner/testing/runner_testing.h"

namespace millrace {

inline constexpr int32_t kPageSize = 4;
inline constexpr int kPagesEach = 8;

struct Request {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
  std::vector<int32_t> tokens;  // generated
  int32_t done = 0;             // rows submitted
  int in_flight = 0;            // batches
};

inline std::vector<Request> make_requests(int count, int32_t vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Request> requests(static_cast<std::size_t>(count));
  for (Request& request : requests) {
    request.new_tokens = 1 + static_cast<int>(random() % 8);
    for (unsigned left = 1 + random() % 20; left > 0; --left) {
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size)));
    }
  }
  return requests;
}

// Request i has the pages from i * kPagesEach on.
inline SequenceStep step_of(const Request& request, std::size_t index, int32_t rows) {
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), request.tokens.begin(), request.tokens.end());
  SequenceStep step;
  step.request = ReqId{index + 1};
  step.position = request.done;
  const int32_t count = std::min(rows, static_cast<int32_t>(all.size()) - request.done);
  step.tokens.assign(all.begin() + request.done, all.begin() + request.done + count);
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < kPagesEach; ++i) pages.push_back(static_cast<int32_t>(index) * kPagesEach + i);
  step.pages = std::move(pages);
  step.sample = request.done + count == static_cast<int32_t>(all.size());
  step.sampling = {.temperature = index % 2 ? 0.8 : 0.0, .seed = index};
  return step;
}

class ChainFixture : public testing::Test {
 protected:
  void SetUp() override {
    model_ = load_model_dir(golden_model_dirs(MILLRACE_SOURCE_DIR).front()).value();
    layers_ = model_->config().layers;
    ASSERT_GE(layers_, 3);
    options_.threads = 1;
    options_.page_size = kPageSize;
    options_.page_count = 12 * kPagesEach;
    options_.poison_pages = true;
  }

  std::unique_ptr<TestChain> chain(int ranges, ChainTap tap = {}) {
    return std::make_unique<TestChain>(model_, options_, even_ranges(layers_, ranges), std::move(tap));
  }
  static Status complete(TestChain& chain) {
    return chain.runner->wait_complete([] { return true; });
  }

  // Waits without a limit of its own: ctest has one.
  static BatchResult result_of(Runner& runner) {
    for (;;) {
      if (auto result = runner.poll(1000)) return std::move(*result);
    }
  }
  Batch one(const SequenceStep& step) { return {.step = step_++, .sequences = {step}}; }

  // Runs all requests, as many batches in flight as the runner permits; chunks are random. After a loss, once nothing
  // is in flight, `recover` is called, and all KV is computed anew. Without it no batch may fail.
  std::vector<std::vector<int32_t>> run_all(Runner& runner, std::vector<Request> requests, uint32_t seed,
                                            const std::function<void()>& recover = {}) {
    std::mt19937 random(seed);
    bool lost = false;
    (void)runner.kv_epoch();  // what was lost before is known
    const int32_t depth = runner.facts().depth;
    int32_t in_flight = 0;
    for (;;) {
      Batch batch{.step = step_++};
      for (std::size_t i = 0; i < requests.size() && in_flight < depth && !lost; ++i) {
        Request& request = requests[i];
        const auto length = static_cast<int32_t>(request.prompt.size() + request.tokens.size());
        const bool ended = static_cast<int>(request.tokens.size()) == request.new_tokens;
        if (ended || request.done == length || random() % 3 == 0) continue;
        batch.sequences.push_back(step_of(request, i, 1 + static_cast<int32_t>(random() % 6)));
        request.done += static_cast<int32_t>(batch.sequences.back().tokens.size());
        ++request.in_flight;
      }
      if (!batch.sequences.empty()) {
        EXPECT_TRUE(runner.submit(std::move(batch)).ok());
        ++in_flight;
        if (in_flight < depth) continue;
      }
      if (in_flight == 0) {
        if (std::ranges::all_of(requests,
                                [](const Request& r) { return static_cast<int>(r.tokens.size()) == r.new_tokens; })) {
          break;
        }
        continue;
      }
      const BatchResult result = result_of(runner);
      EXPECT_TRUE(result.status.ok() || recover) << result.status.to_string();
      if (!result.status.ok() && !recover) break;
      lost |= !result.status.ok();
      --in_flight;
      for (const SampledToken& token : result.tokens) requests[token.request.value - 1].tokens.push_back(token.token);
      if (!lost || in_flight > 0) continue;
      recover();
      (void)runner.kv_epoch();
      for (Request& request : requests) request.done = 0;
      lost = false;
    }
    std::vector<std::vector<int32_t>> texts;
    for (const Request& request : requests) texts.push_back(request.tokens);
    return texts;
  }

  // The texts of requests that never met.
  std::vector<std::vector<int32_t>> one_after_the_other(Runner& runner, std::vector<Request> requests) {
    std::vector<std::vector<int32_t>> texts;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Request& request = requests[i];
      while (static_cast<int>(request.tokens.size()) < request.new_tokens) {
        EXPECT_TRUE(runner.submit(one(step_of(request, i, 1000))).ok());
        request.done = static_cast<int32_t>(request.prompt.size() + request.tokens.size());
        request.tokens.push_back(result_of(runner).tokens.at(0).token);
      }
      texts.push_back(request.tokens);
    }
    return texts;
  }

  std::shared_ptr<const Model> model_;
  RunnerOptions options_;
  int layers_ = 0;
  uint64_t step_ = 0;
};

// Waits for what another thread does; ctest has a limit.
inline void wait_for(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace millrace
