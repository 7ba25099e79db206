#include "pipeline/live_requests.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

class LiveRequestsTest : public ::testing::Test {
 protected:
  LiveRequest& add(int64_t deadline_ms) {
    auto request = std::make_unique<LiveRequest>();
    request->id = table_.new_id();
    request->deadline_ms = deadline_ms;
    return table_.add(std::move(request));
  }
  CoordinatorBooks books() const {
    CoordinatorBooks out;
    table_.add_to(out);
    return out;
  }

  LiveRequests table_{7, 2};
};

TEST_F(LiveRequestsTest, ARequestEndsOnce) {
  const ReqId id = add(100).id;
  EXPECT_NE(table_.find(id), nullptr);
  const auto request = table_.end(id, RequestState::kFailed);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->id, id);
  EXPECT_EQ(table_.find(id), nullptr);
  EXPECT_FALSE(table_.end(id, RequestState::kCompleted));
  EXPECT_FALSE(table_.end(ReqId{1}, RequestState::kAborted));  // was never in it
  EXPECT_EQ(books().failed, 1u);
  EXPECT_EQ(books().completed + books().aborted + books().live, 0u);
}

TEST_F(LiveRequestsTest, DeadlinesPassSortedAndEndWithTheRequest) {
  const ReqId late = add(300).id, early = add(200).id;
  EXPECT_EQ(table_.overdue(199), nullptr);
  ASSERT_NE(table_.overdue(300), nullptr);
  EXPECT_EQ(table_.overdue(300)->id, early);
  table_.end(early, RequestState::kFailed);
  EXPECT_EQ(table_.overdue(299), nullptr);
  EXPECT_EQ(table_.overdue(300)->id, late);
  table_.end(late, RequestState::kCompleted);
  EXPECT_EQ(table_.overdue(1000), nullptr);
}

TEST_F(LiveRequestsTest, ItIsFullAtTheLimitAndARefusalIsAnEnd) {
  add(1);
  EXPECT_TRUE(table_.check_capacity().ok());
  const ReqId second = add(1).id;
  EXPECT_EQ(table_.check_capacity().message(), "2 requests are live, the limit; try again later");
  int ends = 0;
  const RequestSink sink = [&ends](RequestEvent& event) {
    ends += event.end() && event.end()->state == RequestState::kFailed;
    return SinkAnswer::kTaken;
  };
  table_.refuse(table_.new_id(), sink, table_.check_capacity());
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(books().submitted, 3u);
  EXPECT_EQ(books().refused, 1u);
  table_.end(second, RequestState::kAborted);
  EXPECT_TRUE(table_.check_capacity().ok());
}

TEST_F(LiveRequestsTest, WhatWaitsForItsEntryStageIsQueued) {
  LiveRequest& one = add(1);
  const ReqId other = add(1).id;
  table_.queue(one);
  EXPECT_EQ(table_.queued(), std::vector<ReqId>{one.id});
  EXPECT_FALSE(table_.is_queued(other));
  table_.set_running(one);
  EXPECT_EQ(one.state, RequestState::kRunning);
  EXPECT_TRUE(table_.queued().empty());
  table_.queue(*table_.find(other));
  table_.end(other, RequestState::kFailed);
  EXPECT_TRUE(table_.queued().empty());
  EXPECT_EQ(table_.select([](const LiveRequest&) { return true; }), std::vector<ReqId>{one.id});
}

TEST_F(LiveRequestsTest, SessionsHaveDifferentIds) {
  LiveRequests other(8, 1);
  EXPECT_NE(table_.new_id().value >> 32, other.new_id().value >> 32);
  EXPECT_LT(other.new_id().value, uint64_t{1} << 53);  // exact in a double
}

}  // namespace
}  // namespace millrace
