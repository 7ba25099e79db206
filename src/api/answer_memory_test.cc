// What answers may hold: one, and all together.
#include "api/answer_memory.h"

#include <gtest/gtest.h>

#include "api/testing/api_harness.h"

namespace millrace::api {
namespace {

TEST(AnswerMemoryOfOne, OneAnswerAndAllTogetherAreBounded) {
  AnswerMemory memory;
  std::size_t one = 0;
  EXPECT_TRUE(memory.add(one, kMaxAnswerBytes).ok());
  EXPECT_EQ(memory.add(one, 1).code(), StatusCode::kUnsupported);
  EXPECT_EQ(memory.held(), kMaxAnswerBytes + 1);
  memory.release(one);
  EXPECT_EQ(one, 0u);
  EXPECT_EQ(memory.held(), 0u);
  std::size_t many[5] = {};
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(memory.add(many[i], kMaxAnswerBytes).ok());
  EXPECT_EQ(memory.add(many[4], 1).code(), StatusCode::kResourceExhausted);
  for (std::size_t& held : many) memory.release(held);
  EXPECT_EQ(memory.held(), 0u);
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

}  // namespace
}  // namespace millrace::api
