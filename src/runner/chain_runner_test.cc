// A chain of layer ranges: the same bits as one range, batches on top of each other, and what becomes of requests when
// ranges die, refuse, or get messages that are not theirs.
#include "runner/chain_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "runner/testing/chain_testing.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr int32_t kPageSize = 4;
constexpr int kPagesEach = 8;

struct Request {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
  std::vector<int32_t> tokens;  // generated
  int32_t done = 0;             // rows submitted
  int in_flight = 0;            // batches
};

std::vector<Request> make_requests(int count, int32_t vocab_size, uint32_t seed) {
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
SequenceStep step_of(const Request& request, std::size_t index, int32_t rows) {
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

class ChainRunnerTest : public testing::Test {
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

  // Runs all requests, as many batches in flight as the runner permits; chunks are random.
  std::vector<std::vector<int32_t>> run_all(Runner& runner, std::vector<Request> requests, uint32_t seed) {
    std::mt19937 random(seed);
    (void)runner.kv_epoch();  // what was lost before is known
    const int32_t depth = runner.facts().depth;
    int32_t in_flight = 0;
    for (;;) {
      Batch batch{.step = step_++};
      for (std::size_t i = 0; i < requests.size() && in_flight < depth; ++i) {
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
      EXPECT_TRUE(result.status.ok()) << result.status.to_string();
      if (!result.status.ok()) break;
      --in_flight;
      for (const SampledToken& token : result.tokens) requests[token.request.value - 1].tokens.push_back(token.token);
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

TEST_F(ChainRunnerTest, BatchesOnTopOfEachOtherGiveTheSameTokens) {
  const auto requests = make_requests(12, model_->config().vocab_size, 5);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    options_.kv_dtype = dtype;
    const auto wanted = one_after_the_other(*ModelRunner::make(model_, options_).value(), requests);
    for (int ranges = 2; ranges <= layers_; ++ranges) {
      auto split = chain(ranges);
      ASSERT_TRUE(complete(*split).ok());
      EXPECT_EQ(split->facts().depth, ranges + 1);
      EXPECT_FALSE(split->facts().token_in_flight);
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        EXPECT_EQ(run_all(*split, requests, seed), wanted) << ranges << " ranges, seed " << seed;
      }
      EXPECT_EQ(split->kv_epoch(), 0u);
    }
  }
}

TEST_F(ChainRunnerTest, AFirstRangeOfNoLayersIsTheEmbeddingAndTheHeadAlone) {
  const auto requests = make_requests(6, model_->config().vocab_size, 6);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  TestChain bare(model_, options_, {{0, 0}, {0, layers_}});
  ASSERT_TRUE(complete(bare).ok());
  step_ = 0;
  EXPECT_EQ(run_all(bare, requests, 2), wanted);
}

TEST_F(ChainRunnerTest, ARangeThatDiffersIsRefusedByName) {
  const std::vector<std::pair<std::function<void(RangeSlot&)>, std::string>> cases = {
      {[](RangeSlot& s) { s.facts.model_hash = 1; }, "range 1: the hash of the model is 1; wanted 24301"},
      {[](RangeSlot& s) { s.facts.kv_dtype = "BF16"; }, "range 1: the type of the KV cache is BF16; wanted F32"},
      {[](RangeSlot& s) { s.facts.page_count = 7; }, "range 1: the number of KV pages is 7; wanted 96"},
      {[](RangeSlot& s) { s.facts.isa = "other"; }, "range 1: the instruction set is other"},
      {[](RangeSlot& s) { s.facts.weight_version = 9; }, "range 1: the version of the weights is 9; wanted 1"},
      {[](RangeSlot& s) { s.ranges = 3; }, "range 1: the chain has 2 ranges; wanted 3"},
  };
  for (const auto& [change, part] : cases) {
    TestChain split(model_, options_, even_ranges(layers_, 2));
    ASSERT_TRUE(complete(split).ok());
    split.ranges.kill(1);
    split.ranges.start(1, change);
    Status status;  // OK until the loss is seen
    while (status.ok()) status = complete(split);
    EXPECT_EQ(status.code(), StatusCode::kConflict);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST_F(ChainRunnerTest, ARangeTakesThePagesOfTheFirstOneAndNoneForAnotherModel) {
  const auto requests = make_requests(6, model_->config().vocab_size, 8);
  const auto upper = range_of(model_, even_ranges(layers_, 2)[1]);
  std::atomic<int> made = 0;
  std::atomic<bool> fits = false;
  const auto learns = [&](RangeSlot& slot) {
    slot.facts.page_count = 7;
    slot.make_engine = [&](const wire::ChainFacts& first) -> Result<std::unique_ptr<LayerEngine>> {
      ++made;
      if (!fits) return error(StatusCode::kResourceExhausted, "{} pages do not fit", first.page_count);
      RunnerOptions options = options_;
      options.page_count = first.page_count;
      return LayerEngine::make(*upper, options);
    };
  };
  TestChain split(model_, options_, even_ranges(layers_, 2));
  ASSERT_TRUE(complete(split).ok());
  const auto wanted = run_all(split, requests, 1);
  // Until the chain has this state: the one before holds until the first range has seen the loss and the new hello.
  const auto restart = [&](const std::function<void(RangeSlot&)>& change, StatusCode state) {
    split.ranges.kill(1);
    split.ranges.start(1, change);
    Status status = complete(split);
    while (status.code() != state) status = complete(split);
    return status;
  };
  EXPECT_EQ(restart(learns, StatusCode::kResourceExhausted).message(),
            fmt::format("range 1: {} pages do not fit", options_.page_count));
  made = 0;
  fits = true;
  (void)restart([&](RangeSlot& slot) { learns(slot), slot.facts.model_hash = 1; }, StatusCode::kConflict);
  EXPECT_EQ(made, 0);
  (void)restart(learns, StatusCode::kOk);
  EXPECT_GT(made, 0);
  EXPECT_EQ(run_all(split, requests, 2), wanted);
}

TEST_F(ChainRunnerTest, RangesThatLeaveAGapOrMissTheEndAreRefused) {
  TestChain gap(model_, options_, {{0, 1}, {2, layers_}});
  Status status = complete(gap);
  EXPECT_NE(status.message().find("the ranges before hold layers up to 1; wanted 2"), std::string::npos)
      << status.message();
  TestChain short_of_one(model_, options_, {{0, 1}, {1, layers_ - 1}});
  status = complete(short_of_one);
  EXPECT_NE(
      status.message().find(fmt::format("2 ranges hold layers [0, {}); wanted 2 with all {}", layers_ - 1, layers_)),
      std::string::npos)
      << status.message();
}

TEST_F(ChainRunnerTest, ALostRangeFailsWhatIsInFlightAndComesBack) {
  const auto requests = make_requests(6, model_->config().vocab_size, 7);
  std::atomic<bool> hold{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message& message) {
    return hold && from == 0 && std::holds_alternative<wire::LayerStep>(message) ? 0 : 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);

  for (int round = 1; round <= 3; ++round) {
    hold = true;
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    ASSERT_TRUE(split->submit(one(step_of(requests[1], 1, 1000))).ok());
    split->ranges.kill(1);
    for (int i = 0; i < 2; ++i) {
      const BatchResult result = result_of(*split);
      EXPECT_EQ(result.status.code(), StatusCode::kUnavailable) << result.status.to_string();
      EXPECT_NE(result.status.message().find("range 1 (killed)"), std::string::npos) << result.status.message();
      EXPECT_TRUE(result.tokens.empty());
      EXPECT_GE(split->kv_epoch(), static_cast<uint64_t>(round));
    }
    // Without the range a batch fails at once.
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    EXPECT_EQ(result_of(*split).status.code(), StatusCode::kUnavailable);
    hold = false;
    split->ranges.start(1);
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 2), wanted);
  }
}

// The sender has not asked for kv_epoch() since the loss: its pages may be of before.
TEST_F(ChainRunnerTest, ABatchOfBeforeTheLossIsNotComputedAfterIt) {
  const auto requests = make_requests(1, model_->config().vocab_size, 7);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(split->kv_epoch(), 0u);
  split->ranges.kill(1);
  split->ranges.start(1);
  // Completed once before the loss is seen, perhaps: a batch that fails shows that it is.
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  while (result_of(*split).status.ok()) ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  ASSERT_TRUE(complete(*split).ok());
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  EXPECT_EQ(result_of(*split).status.code(), StatusCode::kUnavailable);
  EXPECT_GE(split->kv_epoch(), 1u);
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  EXPECT_TRUE(result_of(*split).status.ok());
}

TEST_F(ChainRunnerTest, ARangeThatIsGoneForGoodEndsTheWait) {
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  split->ranges.kill(1, true);
  Status status;
  while (status.ok()) status = complete(*split);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("range 1 (killed) is gone"), std::string::npos) << status.message();
}

// Waits for what another thread does; ctest has a limit.
void wait_for(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(ChainRunnerTest, ALostRangeIsNamedUntilItIsBack) {
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(split->runner->missing(), "");
  EXPECT_FALSE(split->runner->recovering());
  split->ranges.kill(1);
  wait_for([&] { return split->runner->recovering(); });
  EXPECT_EQ(split->runner->missing(), "a part of the model's layers is missing: range 1 (killed)");
  split->ranges.start(1);
  wait_for([&] { return !split->runner->recovering(); });
  EXPECT_EQ(split->runner->missing(), "");
}

// One LayerAlive and no more: the range is taken for lost, then its process is to end.
TEST_F(ChainRunnerTest, ASilentRangeIsGivenUpAndThenStartedAgain) {
  const auto requests = make_requests(1, model_->config().vocab_size, 7);
  std::atomic<bool> frozen{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message&) { return frozen && from == 1 ? 0 : 1; });
  ASSERT_TRUE(complete(*split).ok());
  split->ranges.send_alive(1);
  frozen = true;
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  const BatchResult result = result_of(*split);
  EXPECT_NE(result.status.message().find("range 1 (silent for 2 s)"), std::string::npos) << result.status.message();
  wait_for([&] { return split->ranges.restarted() == 1; });
}

// A process may stop before its first LayerAlive has arrived: what completed the chain is expected to send too.
TEST_F(ChainRunnerTest, ARangeThatIsSilentFromTheStartIsGivenUp) {
  std::atomic<bool> frozen{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message&) { return frozen && from == 1 ? 0 : 1; });
  ASSERT_TRUE(complete(*split).ok());
  frozen = true;
  split->ranges.set_send_alive();
  split->ranges.send_alive(2);  // none of this chain: only wakes the first one
  wait_for([&] { return split->runner->recovering(); });
  EXPECT_NE(split->runner->missing().find("range 1 (silent for 2 s)"), std::string::npos) << split->runner->missing();
  wait_for([&] { return split->ranges.restarted() == 1; });
}

TEST_F(ChainRunnerTest, MetricsHaveWhatEachRangeComputed) {
  const auto requests = make_requests(12, model_->config().vocab_size, 5);
  auto split = chain(2);
  ASSERT_TRUE(complete(*split).ok());
  run_all(*split, requests, 1);
  std::map<std::string, double> found;
  for (const RunnerMetric& metric : split->runner->metrics()) found[metric.name] = metric.value;
  EXPECT_EQ(found.at("chain_ranges"), 2);
  EXPECT_EQ(found.at("chain_breaks_total"), 0);
  EXPECT_GT(found.at("chain_parts_total"), 10);
  EXPECT_GT(found.at("chain_row_bytes_total"), found.at("chain_parts_total") * 4 * model_->config().hidden_size);
  const double busy = found.at("chain_busy_seconds_total");
  for (const char* range : {"{range=0}", "{range=1}"}) {
    EXPECT_GT(found.at(std::string("range_compute_seconds_total") + range), 0);
    EXPECT_LE(found.at(std::string("range_compute_seconds_total") + range), busy);
    EXPECT_GE(found.at(std::string("range_idle_ratio") + range), 0);
    EXPECT_LT(found.at(std::string("range_idle_ratio") + range), 1);
  }
}

// The test changes a step on its way. `seal`: and its checksum, as if the sender had meant it.
struct Tamper {
  std::function<void(wire::LayerStep&)> change;
  bool seal = true;
  std::string error;
};

TEST_F(ChainRunnerTest, AStepThatIsWrongIsRefusedBeforeAnythingIsComputed) {
  const std::vector<Tamper> cases = {
      {[](wire::LayerStep& s) { s.rows.bytes.bytes[0] ^= 1; }, false, "the checksum of the rows is"},
      {[](wire::LayerStep& s) { s.step += 1; }, true, "came back; wanted step"},
      {[](wire::LayerStep& s) { s.batch[0].pages[0] = 96; }, true, "request 1: the page 96; wanted [0, 96)"},
      {[](wire::LayerStep& s) { s.batch[0].pages.clear(); }, true, "request 1: 0 pages for"},
      {[](wire::LayerStep& s) { s.batch[0].pages_kept = 2; }, true,
       "2 pages are kept of the table of request 1, which has 0"},
      {[](wire::LayerStep& s) { s.batch[0].pages[0] = 3; }, false, "the checksum of the rows is"},
      {[](wire::LayerStep& s) { s.number += 1; }, true, "step number 1 came; wanted 0"},
      {[](wire::LayerStep& s) { s.batch[0].token_index = 1000; }, true, "pages for 10"},
      {[](wire::LayerStep& s) { s.weight_version = 5; }, true, "weight_version is 5; wanted 1"},
      {[](wire::LayerStep& s) {
         s.copies = {2, 0, 0};
       },
       true, "a copy has the direction 2"},
      {[](wire::LayerStep& s) {
         s.copies = {0, 0, 0};
       },
       true, "host"},
  };
  for (const Tamper& tamper : cases) {
    std::atomic<bool> armed{true};
    auto split = chain(2, [&](uint32_t from, wire::Message& message) {
      auto* step = std::get_if<wire::LayerStep>(&message);
      if (from != 0 || step == nullptr || !armed.exchange(false)) return 1;
      tamper.change(*step);
      if (tamper.seal) step->rows.checksum = layer_checksum(*step);
      return 1;
    });
    ASSERT_TRUE(complete(*split).ok());
    const auto requests = make_requests(1, model_->config().vocab_size, 8);
    ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
    const BatchResult result = result_of(*split);
    EXPECT_FALSE(result.status.ok()) << tamper.error;
    EXPECT_NE(result.status.message().find(tamper.error), std::string::npos) << result.status.message();
    // The next one is computed, whether in this epoch or, where a step went missing, in another.
    Status again = error(StatusCode::kUnavailable, "");
    while (again.code() == StatusCode::kUnavailable) {
      ASSERT_TRUE(complete(*split).ok());
      (void)split->kv_epoch();
      ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
      again = result_of(*split).status;
    }
    EXPECT_TRUE(again.ok()) << again.to_string();
  }
}

TEST_F(ChainRunnerTest, ARowThatIsNotANumberCostsItsSequenceAlone) {
  const auto requests = make_requests(2, model_->config().vocab_size, 9);
  auto split = chain(2, [&](uint32_t from, wire::Message& message) {
    auto* step = std::get_if<wire::LayerStep>(&message);
    if (from != 0 || step == nullptr) return 1;
    const auto row =
        static_cast<std::size_t>(step->batch[0].rows - 1) * static_cast<std::size_t>(step->rows.hidden_size);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(step->rows.bytes.bytes.data() + row * sizeof(float), &nan, sizeof(nan));
    step->rows.checksum = layer_checksum(*step);
    return 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  Batch batch{.step = step_++, .sequences = {step_of(requests[0], 0, 1000), step_of(requests[1], 1, 1000)}};
  ASSERT_TRUE(split->submit(std::move(batch)).ok());
  const BatchResult result = result_of(*split);
  ASSERT_TRUE(result.status.ok()) << result.status.to_string();
  ASSERT_EQ(result.tokens.size(), 2u);
  EXPECT_FALSE(result.tokens[0].status.ok());
  EXPECT_TRUE(result.tokens[1].status.ok()) << result.tokens[1].status.to_string();
}

TEST_F(ChainRunnerTest, MessagesThatComeTwiceChangeNothing) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  const auto wanted = one_after_the_other(*ModelRunner::make(model_, options_).value(), requests);
  for (int ranges = 2; ranges <= layers_; ++ranges) {
    auto split = chain(ranges, [](uint32_t, const wire::Message&) { return 2; });
    ASSERT_TRUE(complete(*split).ok());
    EXPECT_EQ(run_all(*split, requests, 1), wanted);
    EXPECT_EQ(split->kv_epoch(), 0u);
  }
}

TEST_F(ChainRunnerTest, AStepThatIsLostBeginsAnEpoch) {
  const auto requests = make_requests(6, model_->config().vocab_size, 10);
  std::atomic<bool> drop{false};
  auto split = chain(2, [&](uint32_t from, const wire::Message& message) {
    return from == 0 && std::holds_alternative<wire::LayerStep>(message) && drop.exchange(false) ? 0 : 1;
  });
  ASSERT_TRUE(complete(*split).ok());
  const auto wanted = run_all(*split, requests, 1);
  drop = true;
  ASSERT_TRUE(split->submit(one(step_of(requests[0], 0, 1000))).ok());
  ASSERT_TRUE(split->submit(one(step_of(requests[1], 1, 1000))).ok());
  for (int i = 0; i < 2; ++i) {
    const BatchResult result = result_of(*split);
    EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
    EXPECT_NE(result.status.message().find("step number"), std::string::npos) << result.status.message();
  }
  EXPECT_GE(split->kv_epoch(), 1u);
  ASSERT_TRUE(complete(*split).ok());
  EXPECT_EQ(run_all(*split, requests, 3), wanted);
}

}  // namespace
}  // namespace millrace
