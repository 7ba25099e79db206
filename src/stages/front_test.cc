// The front against a fake scheduler and a fake detokenizer: one request, one end.
#include "stages/front.h"

#include <gtest/gtest.h>

#include "stages/testing/front_harness.h"

namespace millrace::testing {
namespace {

using wire::FinishReason;

class FrontTest : public FrontHarness {};

TEST_F(FrontTest, TheWayOfARequest) {
  start();
  auto heard = std::make_shared<Heard>();
  GenerateRequest in = request(3, 5);
  in.sampling.seed = 77;
  in.sampling.stop = {"x"};
  in.extra_key = "salt";
  const ReqId id = front_->submit(std::move(in), sink_of(heard));
  ASSERT_TRUE(eventually([&] { return scheduler_->request_count() == 1; }));
  const wire::TokenizedRequest sent = scheduler_->requests()[0];
  EXPECT_EQ(sent.id, id);
  EXPECT_EQ(sent.prompt, std::vector<int32_t>(3, 257));
  EXPECT_EQ(sent.sampling.max_tokens, 5);
  EXPECT_EQ(sent.sampling.seed, 77u);
  EXPECT_EQ(sent.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(sent.extra_key, "salt");
  EXPECT_EQ(front_->live_requests(), 1u);
  deliver({.id = id, .accepted = true});
  deliver({.id = id, .text = "he"});
  deliver({.id = ReqId{id.value + 1000}, .text = "somebody else's"});
  deliver({.id = id, .text = "llo", .finish = wire::Finish{.reason = FinishReason::kLength}});
  deliver({.id = id, .text = "late", .finish = wire::Finish{.reason = FinishReason::kStop}});
  ASSERT_TRUE(eventually([&] { return ended(*heard); }));
  deliver({.id = id, .text = "later"});
  EXPECT_TRUE(front_->wait_idle(1000));
  std::lock_guard lock(heard->mutex);
  EXPECT_EQ(heard->text, "hello");
  EXPECT_EQ(heard->accepted, 1);
  ASSERT_EQ(heard->ends.size(), 1u);
  EXPECT_EQ(heard->ends[0].reason, FinishReason::kLength);
  EXPECT_TRUE(scheduler_->aborts().empty());
}

TEST_F(FrontTest, LengthsAreResolvedOrRefusedWithTheNumbers) {
  start();
  const auto submit_ok = [&](int32_t prompt, std::optional<int32_t> max_tokens, int32_t wanted) {
    const std::size_t index = scheduler_->request_count();
    front_->submit(request(prompt, max_tokens), sink_of(std::make_shared<Heard>()));
    ASSERT_TRUE(eventually([&] { return scheduler_->request_count() > index; })) << prompt;
    EXPECT_EQ(scheduler_->requests()[index].sampling.max_tokens, wanted) << prompt;
  };
  submit_ok(10, std::nullopt, kContext - 10);  // to the end of the context
  submit_ok(10, 6, 6);                         // exactly fits
  submit_ok(15, std::nullopt, 1);
  const auto refused = [&](int32_t prompt, std::optional<int32_t> max_tokens, std::vector<std::string> numbers) {
    const wire::Finish end = end_of(request(prompt, max_tokens));
    EXPECT_EQ(end.reason, FinishReason::kError);
    EXPECT_EQ(end.code, prompt ? StatusCode::kTooLarge : StatusCode::kInvalidArgument) << end.message;
    for (const std::string& number : numbers) EXPECT_NE(end.message.find(number), std::string::npos) << end.message;
  };
  refused(16, std::nullopt, {"16"});
  refused(17, 1, {"16", "17"});
  refused(10, 7, {"16", "17", "10", "7"});
  refused(10, INT32_MAX, {"16", "2147483657"});
  refused(0, 1, {"at least 1"});
  EXPECT_EQ(scheduler_->request_count(), 3u);
}

TEST_F(FrontTest, ABadPromptEndsWithTheTokenizersWords) {
  start();
  GenerateRequest bad;
  bad.prompt = TokenPrompt{{5000}};
  const wire::Finish end = end_of(std::move(bad));
  EXPECT_EQ(end.code, StatusCode::kInvalidArgument);
  EXPECT_NE(end.message.find("5000"), std::string::npos);
  EXPECT_EQ(scheduler_->request_count(), 0u);
}

TEST_F(FrontTest, NotReadyIsSaidWithItsReason) {
  start({}, false);
  EXPECT_FALSE(front_->health().ready);
  EXPECT_EQ(end_of(request(2)).code, StatusCode::kUnavailable);
  beat("detokenizer", wire::StageState::kReady, kIncarnation);
  beat("scheduler", wire::StageState::kLoading, kIncarnation, "loading weights");
  ASSERT_TRUE(eventually([&] { return front_->health().reason.find("loading weights 40%") != std::string::npos; }));
  EXPECT_NE(end_of(request(2)).message.find("scheduler: loading weights 40%"), std::string::npos);
  become_ready();
  running(std::make_shared<Heard>());
}

TEST_F(FrontTest, HeartbeatsOfTheDeadAreIgnored) {
  start();
  front_->expect_stage("scheduler", kIncarnation + 1);
  EXPECT_FALSE(front_->health().ready);
  beat("scheduler", wire::StageState::kReady, kIncarnation);
  beat("nobody", wire::StageState::kReady, kIncarnation);
  beat("detokenizer", wire::StageState::kLoading, kIncarnation, "a mark that the others were read");
  ASSERT_TRUE(eventually([&] { return front_->health().stages.at(0).message.starts_with("a mark"); }));
  EXPECT_FALSE(front_->health().ready);
  EXPECT_EQ(front_->health().stages.size(), 2u);
  beat("detokenizer", wire::StageState::kReady, kIncarnation);
  beat("scheduler", wire::StageState::kReady, kIncarnation + 1);
  EXPECT_TRUE(eventually([&] { return front_->health().ready; }));
}

TEST_F(FrontTest, ASilentStageIsStalled) {
  start();
  const int64_t begin_ms = monotonic_ms();
  ASSERT_TRUE(eventually([&] {
    beat("scheduler", wire::StageState::kReady, kIncarnation);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return !front_->health().ready;
  }));
  EXPECT_GE(monotonic_ms() - begin_ms, kStageSilentMs - 500);
  EXPECT_TRUE(front_->health().reason.starts_with("detokenizer: stalled")) << front_->health().reason;
}

TEST_F(FrontTest, OverTheLimitOfLiveRequestsIsRefused) {
  start({.max_requests = 2});
  auto first = std::make_shared<Heard>();
  const ReqId id = running(first);
  running(std::make_shared<Heard>());
  const wire::Finish end = end_of(request(2));
  EXPECT_EQ(end.code, StatusCode::kResourceExhausted);
  EXPECT_NE(end.message.find("2 requests"), std::string::npos) << end.message;
  deliver({.id = id, .finish = wire::Finish{}});
  ASSERT_TRUE(eventually([&] { return ended(*first); }));
  running(std::make_shared<Heard>());
}

TEST_F(FrontTest, AbortEndsInSilenceAndTellsTheScheduler) {
  start();
  auto heard = std::make_shared<Heard>();
  const ReqId id = running(heard);
  front_->abort(id);
  front_->abort(id);
  front_->abort(ReqId{12345});
  deliver({.id = id, .text = "late", .finish = wire::Finish{.reason = FinishReason::kAborted}});
  EXPECT_EQ(front_->live_requests(), 0u);
  EXPECT_EQ(scheduler_->aborts(), std::vector<ReqId>{id});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  std::lock_guard lock(heard->mutex);
  EXPECT_TRUE(heard->ends.empty());
  EXPECT_EQ(heard->text, "");
}

TEST_F(FrontTest, AbortsThatFoundTheInboxFullAreSaidAgain) {
  start();
  const ReqId first = running(std::make_shared<Heard>());
  const ReqId second = running(std::make_shared<Heard>());
  scheduler_->set_full(true);
  front_->abort(first);
  front_->abort(second);
  EXPECT_EQ(end_of(request(2)).code, StatusCode::kResourceExhausted);  // and a request does not wait in secret
  std::this_thread::sleep_for(std::chrono::milliseconds(kHeartbeatMs + 100));
  EXPECT_TRUE(scheduler_->aborts().empty());
  scheduler_->set_full(false);
  ASSERT_TRUE(eventually([&] { return scheduler_->aborts().size() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(kHeartbeatMs + 100));
  EXPECT_EQ(scheduler_->aborts(), (std::vector<ReqId>{first, second}));
}

TEST_F(FrontTest, AStopStringsEndIsToldToTheScheduler) {
  start();
  auto heard = std::make_shared<Heard>();
  const ReqId id = running(heard);
  deliver({.id = id, .finish = wire::Finish{.reason = FinishReason::kStop, .matched_text = "stop"}});
  ASSERT_TRUE(eventually([&] { return scheduler_->aborts() == std::vector<ReqId>{id}; }));
  EXPECT_TRUE(ended(*heard));
}

TEST_F(FrontTest, ATokenThatTheModelDoesNotHaveFailsItsRequestAlone) {
  start();
  for (const int32_t id : {-1, kVocabulary, INT32_MAX}) {
    auto damaged = std::make_shared<Heard>(), other = std::make_shared<Heard>();
    const ReqId first = running(damaged), second = running(other);
    deliver({.id = first, .text = "half", .tokens = {3, id}});
    deliver({.id = second, .text = "whole", .finish = wire::Finish{}, .tokens = {kVocabulary - 1}});
    ASSERT_TRUE(eventually([&] { return ended(*damaged) && ended(*other); }));
    EXPECT_EQ(first_end(*damaged).reason, wire::FinishReason::kError);
    EXPECT_EQ(first_end(*damaged).message, fmt::format("the engine sent token id {}; wanted 0 to 499", id));
    EXPECT_EQ(first_end(*other).reason, wire::FinishReason::kStop);
    EXPECT_TRUE(eventually([&] {
      const auto aborts = scheduler_->aborts();
      return std::find(aborts.begin(), aborts.end(), first) != aborts.end();
    }));
  }
}

TEST_F(FrontTest, TheDeadlineEndsARequest) {
  start({.request_timeout_s = 0});
  auto heard = std::make_shared<Heard>();
  const ReqId id = front_->submit(request(2), sink_of(heard));
  ASSERT_TRUE(eventually([&] { return ended(*heard); }));
  std::lock_guard lock(heard->mutex);
  EXPECT_EQ(heard->ends[0].code, StatusCode::kDeadline);
  EXPECT_NE(heard->ends[0].message.find("0 s"), std::string::npos);
  if (scheduler_->request_count() == 1) {
    EXPECT_TRUE(eventually([&] { return scheduler_->aborts() == std::vector<ReqId>{id}; }));
  }
}

TEST_F(FrontTest, ADeadStageEndsItsRequestsAndClosesTheDoor) {
  start();
  auto first = std::make_shared<Heard>(), second = std::make_shared<Heard>();
  running(first);
  running(second);
  front_->stage_down("detokenizer", "killed by signal 9 (KILL)");
  for (auto& heard : {first, second}) {
    ASSERT_TRUE(ended(*heard));
    EXPECT_EQ(first_end(*heard).code, StatusCode::kUnavailable);
    EXPECT_NE(first_end(*heard).message.find("signal 9"), std::string::npos);
  }
  EXPECT_EQ(scheduler_->aborts().size(), 2u);
  EXPECT_FALSE(front_->health().ready);
  EXPECT_EQ(end_of(request(2)).code, StatusCode::kUnavailable);
  front_->expect_stage("detokenizer", kIncarnation);
  become_ready();
  running(std::make_shared<Heard>());
}

TEST_F(FrontTest, DrainingRefusesTheNewAndKeepsTheOld) {
  start();
  auto heard = std::make_shared<Heard>(), stuck = std::make_shared<Heard>();
  const ReqId id = running(heard);
  running(stuck);
  front_->drain();
  EXPECT_TRUE(front_->health().draining);
  EXPECT_EQ(end_of(request(2)).code, StatusCode::kUnavailable);
  deliver({.id = id, .finish = wire::Finish{}});
  ASSERT_TRUE(eventually([&] { return ended(*heard); }));
  EXPECT_FALSE(front_->wait_idle(60));  // one is stuck, and ends here
  ASSERT_TRUE(ended(*stuck));
  EXPECT_EQ(first_end(*stuck).code, StatusCode::kUnavailable);
  EXPECT_EQ(first_end(*heard).code, StatusCode::kOk);
  EXPECT_TRUE(front_->wait_idle(0));
}

TEST_F(FrontTest, TokenizeAndDetokenizeGoThroughTheStage) {
  start();
  std::atomic<int> done{0};
  front_->tokenize(TextPrompt{"ab", false}, [&](Result<TokenizeReply> reply) {
    EXPECT_EQ(reply->ids, std::vector<int32_t>{257});
    ++done;
  });
  front_->detokenize({257}, true, [&](Result<std::string> text) {
    EXPECT_EQ(*text, "ab");
    ++done;
  });
  front_->tokenize(TokenPrompt{{-1}}, [&](Result<TokenizeReply> reply) {
    EXPECT_FALSE(reply.ok());
    ++done;
  });
  EXPECT_TRUE(eventually([&] { return done == 3; }));
}

}  // namespace
}  // namespace millrace::testing
