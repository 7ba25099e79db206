// Responses in the background: they are found by their id while they run and afterwards, and no client's end is theirs.
#include <gtest/gtest.h>

#include "api/testing/api_harness.h"
#include "http/testing/test_client.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kPath[] = "/v1/responses";
constexpr char kBody[] = R"({"input":"hi","background":true})";

class BackgroundTest : public ApiHarness {
 protected:
  // The path of request `index`, which the engine has accepted.
  std::string begin(std::size_t index) {
    auto answer = post(kPath, kBody);
    wait_submitted(index + 1);
    engine_.accept(index);
    const Answer got = answer.get();
    EXPECT_EQ(got.status, 200);
    const Json body = got.json();
    EXPECT_EQ(body["status"], "in_progress");
    EXPECT_EQ(body["background"], true);
    EXPECT_EQ(body["output"], Json::array());
    return std::string(kPath) + "/" + body["id"].get<std::string>();
  }
  std::string status_of(const std::string& path) { return get(path).json()["status"]; }
  bool becomes(const std::string& path, const std::string& status) {
    return eventually([&] { return status_of(path) == status; });
  }
  int remove(const std::string& path) {
    http::testing::Client client(server_->port());
    return client.request("DELETE " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").status;
  }
};

TEST_F(BackgroundTest, IsReadWhileItRunsAndWhenItHasEnded) {
  const std::string path = begin(0);
  engine_.text(0, "Hel", 1);
  EXPECT_EQ(status_of(path), "in_progress");
  EXPECT_EQ(get(path + "/input_items").json()["data"].size(), 1u);
  engine_.end(0, {.reason = FinishReason::kStop}, 3, "lo");
  ASSERT_TRUE(becomes(path, "completed"));
  const Json body = get(path).json();
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hello");
  EXPECT_EQ(body["usage"]["output_tokens"], 3);
  EXPECT_EQ(body["background"], true);
  EXPECT_TRUE(engine_.aborts().empty());                     // the client that asked for it is gone for long
  EXPECT_EQ(post(path + "/cancel", "").get().json(), body);  // too late: it stays as it is
}

TEST_F(BackgroundTest, IsCancelledWithWhatItHas) {
  const std::string path = begin(0);
  engine_.text(0, "Hel", 1);
  const Answer cancelled = post(path + "/cancel", "").get();
  EXPECT_EQ(cancelled.status, 200);
  EXPECT_EQ(cancelled.json()["status"], "cancelled");
  ASSERT_TRUE(eventually([&] { return !get(path).json()["output"].empty(); }));
  const Json body = get(path).json();
  EXPECT_EQ(body["status"], "cancelled");
  EXPECT_TRUE(body["incomplete_details"].is_null() && body["completed_at"].is_null());
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hel");
  EXPECT_EQ(post(path + "/cancel", "").get().json(), body);
  EXPECT_EQ(context_->state->live.size(), 0u);
}

TEST_F(BackgroundTest, FailsWhereTheEngineDoes) {
  const std::string path = begin(0);
  engine_.deliver(0, FakeEngine::error_of(0, Status(StatusCode::kUnavailable, "the scheduler is gone")));
  ASSERT_TRUE(becomes(path, "failed"));
  EXPECT_EQ(get(path).json()["error"], parsed(R"({"code":"server_error","message":"the scheduler is gone"})"));
}

TEST_F(BackgroundTest, WhatIsRefusedAtTheStartHasItsRealStatus) {
  engine_.refuse = [](std::size_t) { return Status(StatusCode::kResourceExhausted, "the queue is full"); };
  EXPECT_EQ(post(kPath, kBody).get().status, 429);
  EXPECT_EQ(context_->state->responses.size(), 0u);
  context_->state->responses.set_limits(0, 1);
  const Answer unstored = post(kPath, kBody).get();
  EXPECT_EQ(unstored.status, 400);
  EXPECT_NE(unstored.body.find("it stores no responses"), std::string::npos) << unstored.body;
}

TEST_F(BackgroundTest, ADeletedOneEndsAndDoesNotComeBack) {
  const std::string path = begin(0);
  EXPECT_EQ(remove(path), 200);
  ASSERT_TRUE(eventually([&] { return context_->state->live.size() == 0; }));
  EXPECT_EQ(get(path).status, 404);
}

TEST_F(BackgroundTest, OneThatRunsIsNothingToGoOnFrom) {
  const std::string path = begin(0), id = path.substr(path.rfind('/') + 1);
  const std::string next = R"({"input":"more","previous_response_id":")" + id + "\"}";
  const Answer early = post(kPath, next).get();
  EXPECT_EQ(early.status, 400);
  EXPECT_NE(early.body.find("which is in progress"), std::string::npos) << early.body;
  engine_.end(0, {.reason = FinishReason::kStop}, 3, "lo");
  ASSERT_TRUE(becomes(path, "completed"));
  auto answer = post(kPath, next);
  wait_submitted(2);
  engine_.accept(1);
  engine_.end(1, {.reason = FinishReason::kStop}, 1, "x");
  EXPECT_EQ(answer.get().status, 200);
}

TEST_F(BackgroundTest, AServerThatDrainsWaitsForIt) {
  const std::string path = begin(0);
  EXPECT_FALSE(server_->drain(std::chrono::milliseconds(50)));
  engine_.end(0, {.reason = FinishReason::kStop}, 3, "lo");
  EXPECT_TRUE(server_->drain(std::chrono::minutes(2)));
}

TEST_F(BackgroundTest, AServerThatStopsEndsIt) {
  begin(0);
  server_->stop();
  EXPECT_EQ(engine_.aborts(), std::vector<std::size_t>{0});
}

}  // namespace
}  // namespace millrace::api::testing
