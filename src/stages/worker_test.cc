// The ready-made workers: functions, batches, what a worker does that takes no streams.
#include "stages/worker.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace millrace {
namespace {

struct RecordingEmit : Emit {
  void chunk(ReqId, Value) override {}
  void chunk_to(ReqId, const std::string&, Value, const std::string&) override {}
  void tokens(ReqId, wire::TokenDelta) override {}
  void text(ReqId, wire::TextDelta) override {}
  bool congested(ReqId) const override { return false; }
  void result(ReqId id, Value value) override { results.emplace_back(id.value, *value.get<int64_t>()); }
  void fail(ReqId id, Status status) override { failures.emplace_back(id.value, status.code()); }
  void reply(uint64_t, const Result<std::string>&, wire::WeightsReply) override {}
  std::vector<std::pair<uint64_t, int64_t>> results;
  std::vector<std::pair<uint64_t, StatusCode>> failures;
};

TEST(FunctionWorker, GivesResultsAndErrors) {
  auto worker = make_function_worker([](ReqId, Value v) -> Result<Value> {
    const int64_t n = *v.get<int64_t>();
    if (n < 0) return invalid_argument("{} is negative", n);
    return Value(n * 2);
  });
  RecordingEmit emitted;
  worker->start({1}, Value(4), emitted);
  worker->start({2}, Value(-4), emitted);
  EXPECT_EQ(emitted.results, (std::vector<std::pair<uint64_t, int64_t>>{{1, 8}}));
  EXPECT_EQ(emitted.failures, (std::vector<std::pair<uint64_t, StatusCode>>{{2, StatusCode::kInvalidArgument}}));
  worker->chunk({3}, "a", Value(1), emitted);
  EXPECT_EQ(emitted.failures.back().second, StatusCode::kUnsupported);
}

// What `generate` streams to a worker that knows nothing of deltas.
TEST(Worker, TokensAreIdsToWhoTakesChunks) {
  struct Chunks : Worker {
    void start(ReqId, Value, Emit&) override {}
    void chunk(ReqId, const std::string&, Value chunk, Emit&) override { chunks.push_back(std::move(chunk)); }
    void drop(ReqId) override {}
    std::vector<Value> chunks;
  } worker;
  RecordingEmit emitted;
  worker.tokens({1}, "generate", {.start = wire::DetokenizeStart()}, emitted);
  worker.tokens({1}, "generate", {.tokens = {5, 6}}, emitted);
  ASSERT_EQ(worker.chunks.size(), 1u);
  EXPECT_EQ(worker.chunks[0].find("ids")->get<SharedTensor>()->bytes.size_bytes(), 2 * sizeof(int32_t));
  worker.generate({2}, {}, emitted);
  EXPECT_EQ(emitted.failures.back(), std::make_pair(uint64_t{2}, StatusCode::kUnsupported));
}

class BatchWorkerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Worker> make(BatchLimits limits, CostFunction cost = nullptr) {
    return make_batch_worker(
        [this](std::vector<Value> payloads) {
          std::vector<int64_t> batch;
          std::vector<Result<Value>> results;
          for (const Value& payload : payloads) {
            const int64_t n = *payload.get<int64_t>();
            batch.push_back(n);
            if (n == 666) throw std::runtime_error("the beast");
            results.push_back(n < 0 ? Result<Value>(invalid_argument("negative")) : Result<Value>(Value(n)));
          }
          batches.push_back(batch);
          if (short_by_one) results.pop_back();
          return results;
        },
        limits, std::move(cost));
  }
  using Batches = std::vector<std::vector<int64_t>>;
  Batches batches;
  bool short_by_one = false;
  RecordingEmit emitted;
};

TEST_F(BatchWorkerTest, AFullBatchGoesAtOnceAndTheRestWaits) {
  auto worker = make({.max_batch = 3, .max_wait_ms = 50});
  for (int64_t n = 1; n <= 4; ++n) worker->start({static_cast<uint64_t>(n)}, Value(n), emitted);
  EXPECT_EQ(worker->tick(1000, emitted), 0);
  EXPECT_EQ(batches, (Batches{{1, 2, 3}}));
  EXPECT_EQ(worker->tick(1010, emitted), 40);  // the fourth waits since 1000
  EXPECT_EQ(worker->tick(1050, emitted), Worker::kNever);
  EXPECT_EQ(batches, (Batches{{1, 2, 3}, {4}}));
  EXPECT_EQ(emitted.results.size(), 4u);
}

TEST_F(BatchWorkerTest, TheOldestSetsTheTime) {
  auto worker = make({.max_batch = 3, .max_wait_ms = 50});
  worker->start({1}, Value(1), emitted);
  EXPECT_EQ(worker->tick(100, emitted), 50);
  worker->start({2}, Value(2), emitted);
  EXPECT_EQ(worker->tick(149, emitted), 1);
  EXPECT_EQ(worker->tick(150, emitted), Worker::kNever);
  EXPECT_EQ(batches, (Batches{{1, 2}}));
}

TEST_F(BatchWorkerTest, CostBoundsABatchAndOneTooCostlyGoesAlone) {
  auto worker = make({.max_batch = 10, .max_wait_ms = 50, .max_cost = 10},
                     [](const Value& v) { return static_cast<double>(*v.get<int64_t>()); });
  for (const int64_t n : {4, 5, 3, 50, 2}) worker->start({static_cast<uint64_t>(n)}, Value(n), emitted);
  EXPECT_EQ(worker->tick(0, emitted), 0);
  EXPECT_EQ(worker->tick(0, emitted), 0);
  EXPECT_EQ(worker->tick(0, emitted), 0);
  EXPECT_EQ(batches, (Batches{{4, 5}, {3}, {50}}));
  EXPECT_EQ(worker->tick(50, emitted), Worker::kNever);
  EXPECT_EQ(batches.back(), (std::vector<int64_t>{2}));
}

TEST_F(BatchWorkerTest, ErrorsAreTheElements) {
  auto worker = make({.max_batch = 3, .max_wait_ms = 0});
  worker->start({1}, Value(1), emitted);
  worker->start({2}, Value(-1), emitted);
  worker->start({3}, Value(3), emitted);
  worker->tick(0, emitted);
  EXPECT_EQ(emitted.results.size(), 2u);
  EXPECT_EQ(emitted.failures, (std::vector<std::pair<uint64_t, StatusCode>>{{2, StatusCode::kInvalidArgument}}));
}

TEST_F(BatchWorkerTest, AnExceptionOrAWrongNumberOfResultsFailsTheBatchAlone) {
  auto worker = make({.max_batch = 2, .max_wait_ms = 0});
  worker->start({1}, Value(666), emitted);
  worker->start({2}, Value(2), emitted);
  worker->start({3}, Value(3), emitted);
  EXPECT_EQ(worker->tick(0, emitted), 0);
  EXPECT_EQ(emitted.failures.size(), 2u);
  worker->tick(0, emitted);
  EXPECT_EQ(emitted.results, (std::vector<std::pair<uint64_t, int64_t>>{{3, 3}}));
  short_by_one = true;
  worker->start({4}, Value(4), emitted);
  worker->tick(0, emitted);
  EXPECT_EQ(emitted.failures.back(), (std::pair<uint64_t, StatusCode>{4, StatusCode::kInternal}));
}

TEST_F(BatchWorkerTest, ADroppedRequestLeavesTheBatch) {
  auto worker = make({.max_batch = 3, .max_wait_ms = 10});
  for (uint64_t id = 1; id <= 3; ++id) worker->start({id}, Value(static_cast<int64_t>(id)), emitted);
  worker->drop({2});
  EXPECT_EQ(worker->tick(0, emitted), 10);
  worker->tick(10, emitted);
  EXPECT_EQ(batches, (Batches{{1, 3}}));
}

}  // namespace
}  // namespace millrace
