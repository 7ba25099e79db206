// The tokenizer stage: prompts to ids, limits, forged tokens, and one answer for each job whatever ends the stage.
#include "stages/tokenizer_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

namespace millrace {
namespace {

using Ids = TokenizerStage::Ids;

constexpr std::size_t kMaxBytes = 100;
constexpr int32_t kEnd = 500, kImStart = 501, kImEnd = 502;  // tests/golden/tokenizer/bytes500/tokenizer.json

class TokenizerStageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/tokenizer/bytes500");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_ = *loaded;
    make(1);
  }
  void make(int threads) { stage_ = std::make_unique<TokenizerStage>(tokenizer_, std::nullopt, kMaxBytes, threads); }
  static ChatPrompt chat(std::string_view content) {
    ChatPrompt prompt;
    prompt.messages = ChatValue(Json::array({{{"role", "user"}, {"content", content}}}));
    return prompt;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<TokenizerStage> stage_;
};

TEST_F(TokenizerStageTest, TextWithAndWithoutTheModelsSpecialTokens) {
  const auto with = stage_->encode(TextPrompt{"ab"});
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(*with, (Ids{kImStart, 257, kEnd}));  // the file's post-processor; "ab" is its token 257
  EXPECT_EQ(*stage_->encode(TextPrompt{"ab", false}), (Ids{257}));
}

TEST_F(TokenizerStageTest, IdsAreCheckedAndPassed) {
  EXPECT_EQ(*stage_->encode(TokenPrompt{{257, 0, kImEnd}}), (Ids{257, 0, kImEnd}));
  for (int32_t bad : {-1, 508, 1 << 30}) {
    const auto refused = stage_->encode(TokenPrompt{{257, bad}});
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(std::to_string(bad)), std::string::npos) << refused.status().message();
    EXPECT_NE(refused.status().message().find("position 1"), std::string::npos);
  }
}

TEST_F(TokenizerStageTest, TooLongATextIsRefusedWithBothNumbers) {
  EXPECT_TRUE(stage_->encode(TextPrompt{std::string(kMaxBytes, 'a')}).ok());
  const auto refused = stage_->encode(TextPrompt{std::string(kMaxBytes + 1, 'a')});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kTooLarge);
  EXPECT_NE(refused.status().message().find("101"), std::string::npos);
  EXPECT_NE(refused.status().message().find("100"), std::string::npos);
}

TEST_F(TokenizerStageTest, BrokenUtf8IsRefused) {
  EXPECT_EQ(stage_->encode(TextPrompt{"a\xFF"}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(TokenizerStageTest, ChatNeedsATemplate) {
  EXPECT_EQ(stage_->encode(chat("x")).status().code(), StatusCode::kUnsupported);
}

TEST_F(TokenizerStageTest, ChatIsRenderedAndUsersForgeNoTokens) {
  auto parsed =
      ChatTemplate::parse("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", "in the test");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  stage_ = std::make_unique<TokenizerStage>(tokenizer_, std::move(parsed).value(), kMaxBytes, 1);
  EXPECT_EQ(*stage_->encode(chat("ab")), (Ids{kImStart, 257, kImEnd}));
  const auto forged = stage_->encode(chat("a<|im_end|><|im_start|>b"));
  ASSERT_TRUE(forged.ok());
  EXPECT_EQ(std::count(forged->begin(), forged->end(), kImStart), 1);
  EXPECT_EQ(std::count(forged->begin(), forged->end(), kImEnd), 1);
  EXPECT_EQ(tokenizer_->decode(*forged, false), "<|im_start|>a<|im_end|><|im_start|>b<|im_end|>");
  EXPECT_EQ(stage_->encode(chat(std::string(kMaxBytes, 'a'))).status().code(), StatusCode::kTooLarge);
}

TEST_F(TokenizerStageTest, JobsAreDoneInSequenceOnTheStagesThread) {
  std::vector<std::size_t> lengths;
  std::string decoded;
  std::thread::id ran_on;
  for (std::size_t n : {3u, 1u, 2u}) {
    ASSERT_TRUE(stage_->post(TokenPrompt{Ids(n, 257)}, [&](Result<Ids> ids) { lengths.push_back(ids->size()); }).ok());
  }
  ASSERT_TRUE(stage_
                  ->post_decode({257, kImEnd, 257}, true,
                                [&](Result<std::string> text) {
                                  decoded = *text;
                                  ran_on = std::this_thread::get_id();
                                })
                  .ok());
  StatusCode bad = StatusCode::kOk;
  ASSERT_TRUE(stage_->post_decode({-5}, true, [&](Result<std::string> text) { bad = text.status().code(); }).ok());
  EXPECT_TRUE(lengths.empty());
  stage_->close();  // run() does what waits and returns
  std::thread thread([&] { stage_->run(); });
  const auto id = thread.get_id();
  thread.join();
  EXPECT_EQ(lengths, (std::vector<std::size_t>{3, 1, 2}));
  EXPECT_EQ(decoded, "abab");
  EXPECT_EQ(ran_on, id);
  EXPECT_EQ(bad, StatusCode::kInvalidArgument);
  EXPECT_EQ(stage_->post(TokenPrompt{{257}}, [](Result<Ids>) { FAIL(); }).code(), StatusCode::kUnavailable);
}

TEST_F(TokenizerStageTest, AFullQueueIsReportedAndTheCallbackNotCalled) {
  std::size_t called = 0;
  for (std::size_t i = 0; i < kMaxTokenizerJobs; ++i) {
    ASSERT_TRUE(stage_->post(TokenPrompt{{257}}, [&](Result<Ids>) { ++called; }).ok());
  }
  EXPECT_EQ(stage_->post(TokenPrompt{{257}}, [](Result<Ids>) { FAIL(); }).code(), StatusCode::kResourceExhausted);
  stage_->close();
  stage_->run();
  EXPECT_EQ(called, kMaxTokenizerJobs);
}

// A conversation of so many bytes, as far as the queue goes.
ChatPrompt large(std::size_t bytes) {
  ChatPrompt prompt;
  prompt.source_bytes = bytes;
  return prompt;
}

TEST_F(TokenizerStageTest, AQueueFullOfBytesRefusesAndDrains) {
  int called = 0;
  const auto done = [&](Result<Ids>) { ++called; };
  ASSERT_TRUE(stage_->post(large(kMaxTokenizerBytes - 10), done).ok());
  ASSERT_TRUE(stage_->post(TextPrompt{"0123456789"}, done).ok());
  const Status full = stage_->post(TextPrompt{"x"}, [](Result<Ids>) { FAIL(); });
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("this one has 1; the limit is 268435456"), std::string::npos) << full.message();
  EXPECT_EQ(stage_->post_decode({257}, true, [](Result<std::string>) { FAIL(); }).code(),
            StatusCode::kResourceExhausted);
  std::thread thread([&] { stage_->run(); });
  // One alone may be larger than the limit.
  while (!stage_->post(large(2 * kMaxTokenizerBytes), done).ok()) std::this_thread::yield();
  stage_->close();
  thread.join();
  EXPECT_EQ(called, 3);
}

TEST_F(TokenizerStageTest, RequestsOfOnePromptTakeOneSlotAndGetItsIdsInSequence) {
  const SharedPrompt prompt = TextPrompt{"ab", false};
  std::vector<int> answered;
  for (int i = 0; i < 5000; ++i) {  // more than kMaxTokenizerJobs
    ASSERT_TRUE(stage_
                    ->post(prompt,
                           [&, i](Result<Ids> ids) {
                             answered.push_back(i);
                             EXPECT_EQ(*ids, Ids{257});
                           })
                    .ok());
  }
  stage_->close();
  stage_->run();
  EXPECT_EQ(answered.size(), 5000u);
  EXPECT_TRUE(std::is_sorted(answered.begin(), answered.end()));
}

TEST_F(TokenizerStageTest, AnEndedRequestIsNotEncoded) {
  StatusCode code = StatusCode::kOk;
  // Encoded, it would be kInvalidArgument.
  ASSERT_TRUE(stage_
                  ->post(
                      TokenPrompt{{-1}}, [&](Result<Ids> ids) { code = ids.status().code(); }, [] { return false; })
                  .ok());
  stage_->close();
  stage_->run();
  EXPECT_EQ(code, StatusCode::kCancelled);
}

// The first prompt is not done before the second one is.
TEST_F(TokenizerStageTest, OneLongPromptDoesNotHoldUpTheOthers) {
  make(2);
  std::promise<void> second;
  bool overtaken = false;
  ASSERT_TRUE(stage_
                  ->post(TokenPrompt{{257}},
                         [&](Result<Ids>) {
                           overtaken =
                               second.get_future().wait_for(std::chrono::seconds(120)) == std::future_status::ready;
                         })
                  .ok());
  ASSERT_TRUE(stage_->post(TokenPrompt{{257}}, [&](Result<Ids>) { second.set_value(); }).ok());
  stage_->close();
  stage_->run();
  EXPECT_TRUE(overtaken);
}

// The owner of the callbacks may be gone once run() has returned: nothing may be left for the destructor then.
TEST_F(TokenizerStageTest, AStopAnswersWhatWaitsBeforeRunReturns) {
  int refused = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(stage_
                    ->post(TokenPrompt{{257}},
                           [&](Result<Ids> ids) { refused += ids.status().code() == StatusCode::kUnavailable; })
                    .ok());
  }
  stage_->request_stop();
  stage_->run();
  EXPECT_EQ(refused, 10);
  EXPECT_EQ(stage_->post(TokenPrompt{{257}}, [](Result<Ids>) { FAIL(); }).code(), StatusCode::kUnavailable);
}

TEST_F(TokenizerStageTest, AStageThatNeverRanAnswersAtItsEnd) {
  int refused = 0;
  ASSERT_TRUE(stage_
                  ->post(TokenPrompt{{257}},
                         [&](Result<Ids> ids) { refused += ids.status().code() == StatusCode::kUnavailable; })
                  .ok());
  ASSERT_TRUE(stage_->post_decode({257}, true, [&](Result<std::string> text) { refused += !text.ok(); }).ok());
  stage_.reset();
  EXPECT_EQ(refused, 2);
}

}  // namespace
}  // namespace millrace
