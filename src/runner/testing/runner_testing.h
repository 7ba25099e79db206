// For tests: a scheduler that is as arbitrary as a scheduler may be. It drives a runner through random batches and
// chunks and keeps every row of logits that led to a token. Included by *_test.cc only.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "models/testing/model_testing.h"
#include "runner/model_runner.h"
#include "runner/testing/chain_testing.h"

namespace millrace {

// What one request asks, and what it got.
struct TestRequest {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
  SamplingSpec sampling;
  std::shared_ptr<const PromptInput> input;
  std::shared_ptr<const RowCapture> capture;
  int share_with = -1;  // index of an earlier request whose full prompt pages are taken over, or -1

  std::vector<int32_t> tokens;             // generated
  std::vector<std::vector<float>> logits;  // one row for each generated token
};

struct TestPlan {
  int threads = 1;
  int32_t page_size = 16;
  int32_t max_rows = kMaxRowsPerStep;
  int batch_limit = 1;  // sequences in one batch
  int chunk_limit = 1 << 20;
  uint32_t order_seed = 0;  // 0: requests in order, whole chunks
  kernels::Isa isa = kernels::Isa::kRef;
  DType kv_dtype = DType::kF32;
  int ranges = 1;  // of layers: more than one make a chain of so many
  kernels::Activations activations = kernels::Activations::kF32;
};

class TestScheduler {
 public:
  TestScheduler(std::shared_ptr<const Model> model, TestPlan plan, std::vector<TestRequest> requests)
      : plan_(plan), random_(plan.order_seed), requests_(std::move(requests)), states_(requests_.size()) {
    RunnerOptions options;
    options.threads = plan.threads;
    options.page_size = plan.page_size;
    options.max_rows = plan.max_rows;
    options.poison_pages = true;
    options.isa = plan.isa;
    options.kv_dtype = plan.kv_dtype;
    options.activations = plan.activations;
    for (const TestRequest& request : requests_) options.page_count += pages_of(total(request));
    free_pages_.resize(static_cast<std::size_t>(options.page_count));
    for (int32_t i = 0; i < options.page_count; ++i) free_pages_[static_cast<std::size_t>(i)] = i;
    if (plan_.order_seed) std::shuffle(free_pages_.begin(), free_pages_.end(), random_);
    options.logits_hook = [this](uint64_t, std::span<const ReqId> ids, kernels::Rows logits) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const float* row = logits.row(static_cast<int64_t>(i));
        requests_[ids[i].value].logits.emplace_back(row, row + logits.width);
      }
    };
    runner_ = plan.ranges > 1 ? make_test_chain(std::move(model), options, plan.ranges)
                              : ModelRunner::make(std::move(model), std::move(options)).value();
  }

  // Runs all requests to their ends. The first error of a step or a row, if any.
  Status run() {
    for (uint64_t step = 1;; ++step) {
      Batch batch = next_batch(step);
      if (batch.sequences.empty()) return ok_status();
      RETURN_IF_ERROR(runner_->submit(std::move(batch)));
      std::optional<BatchResult> result;
      while (!result) result = runner_->poll(1000);
      RETURN_IF_ERROR(result->status);
      for (const SampledToken& token : result->tokens) {
        RETURN_IF_ERROR(token.status);
        requests_[token.request.value].tokens.push_back(token.token);
      }
    }
  }
  const std::vector<TestRequest>& requests() const { return requests_; }

 private:
  struct State {
    int32_t done = 0;  // tokens whose KV is written
    std::vector<int32_t> pages;
    bool started = false;
  };
  static int total(const TestRequest& r) { return static_cast<int>(r.prompt.size()) + r.new_tokens; }
  int pages_of(int tokens) const { return (tokens + plan_.page_size - 1) / plan_.page_size; }
  bool finished(std::size_t i) const { return static_cast<int>(requests_[i].tokens.size()) == requests_[i].new_tokens; }

  // False where the request waits for the prompt that it shares.
  bool start(std::size_t i) {
    State& state = states_[i];
    if (state.started) return true;
    const TestRequest& request = requests_[i];
    if (request.share_with >= 0) {
      const auto other = static_cast<std::size_t>(request.share_with);
      const auto common =
          static_cast<int32_t>(std::mismatch(request.prompt.begin(), request.prompt.end() - 1,
                                             requests_[other].prompt.begin(), requests_[other].prompt.end())
                                   .first -
                               request.prompt.begin());
      const int32_t shared = common / plan_.page_size;
      if (states_[other].done < shared * plan_.page_size) return false;
      state.pages.assign(states_[other].pages.begin(), states_[other].pages.begin() + shared);
      state.done = shared * plan_.page_size;
    }
    while (static_cast<int>(state.pages.size()) < pages_of(total(request))) {
      state.pages.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    return state.started = true;
  }

  Batch next_batch(uint64_t step) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!finished(i) && start(i)) ready.push_back(i);
    }
    if (plan_.order_seed) std::shuffle(ready.begin(), ready.end(), random_);
    if (static_cast<int>(ready.size()) > plan_.batch_limit) ready.resize(static_cast<std::size_t>(plan_.batch_limit));
    Batch batch;
    batch.step = step;
    for (const std::size_t i : ready) batch.sequences.push_back(next_step(i));
    return batch;
  }

  SequenceStep next_step(std::size_t i) {
    const TestRequest& request = requests_[i];
    State& state = states_[i];
    std::vector<int32_t> all = request.prompt;
    all.insert(all.end(), request.tokens.begin(), request.tokens.end());
    const auto left = static_cast<int>(all.size()) - state.done;
    int count = std::min(left, plan_.chunk_limit);
    if (plan_.order_seed) count = 1 + static_cast<int>(random_() % static_cast<unsigned>(count));
    SequenceStep step;
    step.request = ReqId{i};
    step.tokens.assign(all.begin() + state.done, all.begin() + state.done + count);
    step.position = state.done;
    step.pages = state.pages;
    step.sample = count == left;
    step.sampling = request.sampling;
    step.input = request.input;
    step.capture = request.capture;
    state.done += count;
    return step;
  }

  const TestPlan plan_;
  std::mt19937 random_;
  std::vector<TestRequest> requests_;
  std::vector<State> states_;
  std::vector<int32_t> free_pages_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace millrace
