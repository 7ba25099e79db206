// What answers may hold: one, and all together.
#include "api/answer_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "api/testing/api_harness.h"
#include "http/testing/test_client.h"

namespace millrace::api {
namespace {

TEST(AnswerMemoryOfOne, OneAnswerAndAllTogetherAreBounded) {
  const auto memory = std::make_shared<AnswerMemory>();
  auto one = std::make_unique<AnswerShare>(memory);
  EXPECT_TRUE(one->add(kMaxAnswerBytes).ok());
  EXPECT_EQ(one->add(1).code(), StatusCode::kUnsupported);
  EXPECT_EQ(memory->held(), kMaxAnswerBytes + 1);
  one->set(5);
  EXPECT_EQ(memory->held(), 5u);
  one.reset();
  EXPECT_EQ(memory->held(), 0u);
  std::vector<std::unique_ptr<AnswerShare>> many;
  for (int i = 0; i < 4; ++i) {
    many.push_back(std::make_unique<AnswerShare>(memory));
    EXPECT_TRUE(many.back()->add(kMaxAnswerBytes).ok());
  }
  AnswerShare large(memory), small(memory);
  EXPECT_TRUE(small.add(kSmallAnswerBytes).ok()) << "small answers are served whatever others hold";
  EXPECT_EQ(large.add(kSmallAnswerBytes + 1).code(), StatusCode::kResourceExhausted);
  many.clear();
  EXPECT_EQ(memory->held(), 2 * kSmallAnswerBytes + 1);
}

wire::TextDelta scores(int32_t positions, std::size_t ids) {
  wire::TextDelta delta;
  wire::TokenLogprobs position{.token = 5, .logprob = -1.0};
  position.of_ids.assign(ids, -2.5);
  delta.prompt_logprobs.assign(static_cast<std::size_t>(positions), position);
  delta.usage.prompt_tokens = positions;
  return delta;
}

class AnswerMemoryTest : public testing::ApiHarness {};

TEST_F(AnswerMemoryTest, AnAnswerThatHoldsTooMuchIsRefusedAndFreed) {
  const std::string body =
      R"({"input_ids":[5,6,7],"return_logprob":true,"logprob_start_len":0,"token_ids_logprob":[1,2,3]})";
  auto answer = post("/generate", body);
  wait_submitted(1);
  engine_.accept(0);
  for (int i = 0; i < 9; ++i) engine_.deliver(0, scores(1000, 1000));
  const Answer got = answer.get();
  EXPECT_EQ(got.status, 400);
  EXPECT_NE(got.body.find("the answer holds"), std::string::npos) << got.body;
  EXPECT_TRUE(testing::eventually([&] { return !engine_.aborts().empty(); }));
}

// A client that asks for much and reads nothing: what it was given counts until it has it.
TEST_F(AnswerMemoryTest, AnAnswerCountsUntilItsClientHasIt) {
  http::testing::Client client(server_->port(), 4096);
  constexpr std::size_t kIds = 100;
  std::string ids = "0";
  for (std::size_t i = 1; i < kIds; ++i) ids += "," + std::to_string(i);
  const std::string body =
      R"({"input_ids":[5,6,7],"return_logprob":true,"logprob_start_len":0,"token_ids_logprob":[)" + ids + "]}";
  client.send("POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  wait_submitted(1);
  engine_.accept(0);
  for (int i = 0; i < 8; ++i) engine_.deliver(0, scores(1000, kIds));
  const AnswerMemory& memory = context_->state->answers;
  const std::size_t kept = memory.held();
  EXPECT_GT(kept, 800'000u * (8 + 16));
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1);
  EXPECT_TRUE(testing::eventually([&] { return server_->stats().responses_2xx == 1; }));
  const std::size_t written = memory.held();
  EXPECT_GT(written, 8'000'000u);
  EXPECT_LT(written, kept) << "as it was kept it is gone";
  EXPECT_EQ(client.read_reply().body.size(), written);
  EXPECT_TRUE(testing::eventually([&] { return memory.held() == 0; }));
}

}  // namespace
}  // namespace millrace::api
