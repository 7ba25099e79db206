#include "stages/loop/outgoing.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stages/loop/limits.h"
#include "wire/limits.h"

namespace millrace::loop {
namespace {

const Receiver kX = {"x", 0, 1}, kY = {"y", 2, 1};

class OutgoingTest : public ::testing::Test {
 protected:
  Status append(const Receiver& to, uint64_t id, std::size_t size_bytes = 0) {
    wire::Chunk chunk{.id = {id}, .body = wire::StreamEnd{}};
    return outgoing_.append(to, chunk, size_bytes);
  }
  Status append_failure(const Receiver& to, uint64_t id) {
    wire::Chunk chunk{.id = {id}, .body = wire::Failure{StatusCode::kInternal, "no"}};
    return outgoing_.append(to, chunk, 0);
  }
  // The ids of each batch that left.
  std::vector<std::vector<uint64_t>> batches(const Receiver& to) {
    std::vector<std::vector<uint64_t>> out;
    for (const wire::Message& message : sent_[to]) {
      const auto* batch = std::get_if<wire::ChunkBatch>(&message);
      if (!batch) continue;
      EXPECT_EQ(batch->to, to.stage);
      out.emplace_back();
      for (const wire::Chunk& chunk : batch->chunks) out.back().push_back(chunk.id.value);
    }
    return out;
  }

  Status send(const Receiver& to, wire::Message& message) {
    if (const auto* batch = std::get_if<wire::ChunkBatch>(&message)) {
      for (const wire::Chunk& chunk : batch->chunks) {
        if (bad_id_ != 0 && chunk.id.value == bad_id_) return error(StatusCode::kTooLarge, "too large");
      }
    }
    if (!answers_[to].ok()) return answers_[to];
    sent_[to].push_back(std::move(message));
    return ok_status();
  }

  std::map<Receiver, std::vector<wire::Message>> sent_;
  std::map<Receiver, Status> answers_;
  uint64_t bad_id_ = 0;  // no batch with this one can be sent
  LoopContext context_{{}, {.connect = [this](const wire::Peer& peer) -> Result<std::shared_ptr<Outbox>> {
                         return std::shared_ptr<Outbox>(std::make_shared<Box>(*this, peer));
                       }}};
  Outgoing outgoing_{context_};

 private:
  struct Box : Outbox {
    Box(OutgoingTest& of, const wire::Peer& peer) : test(of), to{peer.stage, peer.replica, peer.incarnation} {}
    Status send(wire::Message& message) override { return test.send(to, message); }
    OutgoingTest& test;
    const Receiver to;
  };
  void SetUp() override {
    wire::Peers table{.epoch = 1};
    for (const Receiver& to : {kX, kY}) {
      table.peers.push_back({.stage = to.stage, .replica = to.replica, .incarnation = to.incarnation, .up = true});
    }
    ASSERT_TRUE(context_.book.update(table));
  }
};

using Batches = std::vector<std::vector<uint64_t>>;

TEST_F(OutgoingTest, AFlushSendsOneBatchToEach) {
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(append(kX, id).ok());
  EXPECT_TRUE(append(kY, 4).ok());
  EXPECT_TRUE(outgoing_.acknowledge(kY, {.id = {9}, .count = 3}).ok());
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(outgoing_.chunks(), 4u);
  EXPECT_TRUE(outgoing_.any_open());
  outgoing_.flush();
  outgoing_.flush();
  EXPECT_EQ(batches(kX), (Batches{{1, 2, 3}}));
  EXPECT_EQ(batches(kY), (Batches{{4}}));
  EXPECT_EQ(sent_[kY].size(), 2u);
  EXPECT_EQ(outgoing_.chunks(), 0u);
  EXPECT_FALSE(outgoing_.any_open() || outgoing_.any_held());
  const auto results = outgoing_.take_results();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].ids.size(), 3u);
  EXPECT_TRUE(results[0].status.ok());
}

TEST_F(OutgoingTest, AFullBatchLeavesBeforeTheNextChunk) {
  for (uint64_t id = 1; id <= wire::kMaxBatchEntries + 1; ++id) EXPECT_TRUE(append(kX, id).ok());
  ASSERT_EQ(batches(kX).size(), 1u);
  EXPECT_EQ(batches(kX)[0].size(), wire::kMaxBatchEntries);
  EXPECT_TRUE(append(kY, 1, kMaxBatchBytes - 10).ok());
  EXPECT_TRUE(append(kY, 2, 10).ok());
  EXPECT_TRUE(append(kY, 3, 5 * kMaxBatchBytes).ok());  // alone
  EXPECT_TRUE(append(kY, 4, 1).ok());
  EXPECT_EQ(batches(kY), (Batches{{1, 2}, {3}}));
  EXPECT_EQ(outgoing_.chunks(), 2u);
}

TEST_F(OutgoingTest, ARefusedBatchIsHeldAndRefusesMore) {
  answers_[kX] = error(StatusCode::kResourceExhausted, "full");
  EXPECT_TRUE(append(kX, 1).ok());
  EXPECT_TRUE(append(kX, 2).ok());
  outgoing_.flush();
  EXPECT_TRUE(outgoing_.any_held());
  EXPECT_FALSE(outgoing_.any_open());
  EXPECT_EQ(append(kX, 3).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(append(kY, 4).ok());
  answers_[kX] = error(StatusCode::kUnavailable, "away");
  outgoing_.retry();
  EXPECT_EQ(outgoing_.held(kX).code(), StatusCode::kUnavailable);
  auto results = outgoing_.take_results();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].ids, (std::vector<ReqId>{{1}, {2}}));
  EXPECT_EQ(results[0].status.code(), StatusCode::kUnavailable);
  outgoing_.drop({1});
  answers_[kX] = ok_status();
  outgoing_.retry();
  EXPECT_EQ(batches(kX), (Batches{{2}}));
  EXPECT_TRUE(append(kX, 3).ok());
  EXPECT_EQ(outgoing_.chunks(), 2u);
}

TEST_F(OutgoingTest, OneBadChunkGoesAlone) {
  bad_id_ = 2;
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(append(kX, id).ok());
  outgoing_.flush();
  EXPECT_EQ(batches(kX), (Batches{{1}, {3}}));
  EXPECT_EQ(outgoing_.chunks(), 0u);
  std::map<uint64_t, StatusCode> codes;
  for (const auto& result : outgoing_.take_results()) codes[result.ids.at(0).value] = result.status.code();
  EXPECT_EQ(codes,
            (std::map<uint64_t, StatusCode>{{1, StatusCode::kOk}, {2, StatusCode::kTooLarge}, {3, StatusCode::kOk}}));
}

TEST_F(OutgoingTest, FailuresStayWhenTheirRequestIsDropped) {
  EXPECT_TRUE(append(kX, 1).ok());
  EXPECT_TRUE(append_failure(kX, 1).ok());
  outgoing_.drop({1});
  EXPECT_EQ(outgoing_.chunks(), 1u);
  outgoing_.flush();
  EXPECT_EQ(batches(kX), (Batches{{1}}));
  EXPECT_TRUE(outgoing_.take_results().at(0).ids.empty());
  // Alone they are not kept for a receiver that is gone.
  answers_[kX] = error(StatusCode::kUnavailable, "away");
  EXPECT_TRUE(append_failure(kX, 2).ok());
  outgoing_.flush();
  EXPECT_FALSE(outgoing_.any_held());
  EXPECT_EQ(outgoing_.chunks(), 0u);
}

TEST_F(OutgoingTest, WhatIsForOneThatIsGoneIsDropped) {
  EXPECT_TRUE(append(kX, 1).ok());
  EXPECT_TRUE(append(kY, 2).ok());
  outgoing_.drop_if([](const Receiver& to) { return to.stage == "x"; });
  EXPECT_EQ(outgoing_.chunks(), 1u);
  outgoing_.clear();
  outgoing_.flush();
  EXPECT_TRUE(sent_.empty());
}

TEST_F(OutgoingTest, AcknowledgementsAreBounded) {
  answers_[kX] = error(StatusCode::kResourceExhausted, "full");
  for (uint64_t id = 1; id <= wire::kMaxBatchEntries; ++id) EXPECT_TRUE(outgoing_.acknowledge(kX, {{id}, 1}).ok());
  EXPECT_EQ(outgoing_.acknowledge(kX, {{1}, 2}).code(), StatusCode::kResourceExhausted);
  answers_[kX] = ok_status();
  outgoing_.retry();
  EXPECT_TRUE(outgoing_.acknowledge(kX, {{1}, 2}).ok());
}

}  // namespace
}  // namespace millrace::loop
