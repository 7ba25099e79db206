// OpTable: an op ends exactly once, an end waits for the thread that works on the op, and credits follow what readers
// hold.
#include "relay/op_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "relay/testing/await.h"
#include "relay/testing/patterns.h"

namespace millrace {
namespace {

using relay_testing::AwaitGet;
using relay_testing::AwaitPut;

RelayOptions options() {
  RelayOptions o;
  o.credits = 2;
  o.pool_bytes = 100;
  o.lease_ms = 50;
  return o;
}

PutRequest put_of(AwaitPut& end, uint64_t request = 1) {
  return {.parts = {relay_testing::make_part(1, 0, 10)}, .request = ReqId{request}, .done = end.callback()};
}
GetRequest get_of(AwaitGet& end, int timeout_ms) {
  return {.timeout_ms = timeout_ms, .sizes = {10}, .done = end.callback()};
}

TEST(OpTable, AnEndThatComesWhilePinnedWaits) {
  OpTable table(options(), nullptr);
  AwaitPut end;
  const RelayOp op = *table.open_put(put_of(end), 10, 0);
  table.cancel(op);
  EXPECT_EQ(end.count(), 0);
  EXPECT_FALSE(table.pin(op)) << "it is about to end";
  EXPECT_FALSE(table.end_put(op, ok_status())) << "the first end counts";
  table.unpin(op);
  EXPECT_EQ(end.count(), 1);
  EXPECT_EQ(end.wait(0)->code(), StatusCode::kCancelled);
  EXPECT_FALSE(table.end_put(op, ok_status()));
  EXPECT_EQ(end.count(), 1);
}

TEST(OpTable, AForgottenOpIsNeverReported) {
  OpTable table(options(), nullptr);
  AwaitPut end;
  const RelayOp op = *table.open_put(put_of(end), 10, 0);
  table.cancel(op);
  table.forget(op);
  table.unpin(op);
  EXPECT_EQ(end.count(), 0);
  EXPECT_EQ(table.books().held_bytes, 0u);
}

TEST(OpTable, BytesOfAnEndedPutStayWithWhoReads) {
  OpTable table(options(), [](RelayOp, bool, const Status&) { return false; });
  AwaitPut first, second;
  const RelayOp op = *table.open_put(put_of(first), 60, 0);
  table.unpin(op);
  EXPECT_TRUE(table.end_put(op, Status(StatusCode::kDeadline, "")));
  EXPECT_EQ(table.books().puts, 0);
  EXPECT_EQ(table.books().held_bytes, 60u);
  EXPECT_EQ(table.open_put(put_of(second), 60, 0).status().code(), StatusCode::kResourceExhausted);
  table.release(op);
  table.release(op);
  EXPECT_EQ(table.books().held_bytes, 0u);
  const Result<RelayOp> again = table.open_put(put_of(second), 60, 0);
  ASSERT_TRUE(again.ok());
  table.forget(*again);
}

TEST(OpTable, ExpiresByTheClockThatItIsGiven) {
  OpTable table(options(), nullptr);
  AwaitPut put;
  AwaitGet get;
  const RelayOp a = *table.open_put(put_of(put), 10, 1000);
  const RelayOp b = *table.open_get(get_of(get, 20), 1000);
  table.unpin(a), table.unpin(b);
  EXPECT_EQ(table.expire(1000), 20);
  EXPECT_EQ(table.expire(1019), 1);
  EXPECT_EQ(get.count(), 0);
  EXPECT_EQ(table.expire(1020), 30);
  EXPECT_EQ(get.wait(0)->status().code(), StatusCode::kDeadline);
  EXPECT_EQ(table.expire(5000), -1);
  EXPECT_EQ(put.wait(0)->code(), StatusCode::kDeadline);
}

TEST(OpTable, ManyEndsAtOnceCountOnce) {
  for (int round = 0; round < 200; ++round) {
    OpTable table(options(), nullptr);
    AwaitPut end;
    const RelayOp op = *table.open_put(put_of(end), 10, 0);
    std::atomic<int> won{0};
    std::vector<std::thread> threads;
    threads.emplace_back([&] { table.unpin(op); });
    threads.emplace_back([&] { won += table.end_put(op, ok_status()); });
    threads.emplace_back([&] { won += table.end(op, Status(StatusCode::kUnavailable, "")); });
    threads.emplace_back([&] { table.expire(10'000); });
    for (std::thread& thread : threads) thread.join();
    table.close();
    EXPECT_EQ(end.count(), 1);
    EXPECT_LE(won, 1);
  }
}

TEST(OpTable, CloseWaitsForWhoWorks) {
  OpTable table(options(), nullptr);
  AwaitPut end;
  const RelayOp op = *table.open_put(put_of(end), 10, 0);
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    table.unpin(op);
  });
  table.close();
  EXPECT_EQ(end.count(), 1);
  worker.join();
  EXPECT_EQ(table.open_put(put_of(end), 10, 0).status().code(), StatusCode::kUnavailable);
}

TEST(OpTable, LentPartsAreCountedUntilTheLastHolderGoes) {
  auto table = std::make_unique<OpTable>(options(), nullptr);
  int released = 0;
  auto parts = table->lend(relay_testing::make_parts(1, {10, 0, 20}), [&] { ++released; });
  EXPECT_EQ(table->books().lent_parts, 3);
  SharedBytes slice = parts[2].slice(5, 5);
  parts.clear();
  EXPECT_EQ(released, 0);
  table.reset();
  EXPECT_EQ(slice.size_bytes(), 5u);
  slice = {};
  EXPECT_EQ(released, 1);
}

}  // namespace
}  // namespace millrace
