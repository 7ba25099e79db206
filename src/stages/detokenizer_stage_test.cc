// The detokenizer stage over a tokenizer of 500 tokens whose letters are tokens of their own, so that every cut between
// tokens can be made.
#include "stages/detokenizer_stage.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/log.h"

namespace millrace {
namespace {

constexpr uint64_t kIncarnation = 9;

class DetokenizerStageTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    auto loaded = Tokenizer::load(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/tokenizer/bytes500");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_ = *loaded;
    to_front_ = make_local_mailbox();
    LocalMailbox in = make_local_mailbox();
    to_stage_ = in.outbox;
    stage_ = std::make_unique<DetokenizerStage>(tokenizer_, std::move(in.inbox), to_front_.outbox, kIncarnation);
  }

  // One token a byte. Byte-level BPE spells ASCII's printable characters as themselves, and the space as U+0120.
  std::vector<int32_t> letters(std::string_view text) {
    std::vector<int32_t> ids;
    for (char c : text) {
      const auto id = tokenizer_->id_of(c == ' ' ? std::string("\xC4\xA0") : std::string(1, c));
      EXPECT_TRUE(id.has_value()) << c;
      ids.push_back(id.value_or(0));
    }
    return ids;
  }
  int32_t special(std::string_view name) { return tokenizer_->id_of(name).value(); }

  std::vector<wire::TextDelta> translate(wire::TokenDelta delta) {
    wire::TokenBatch batch;
    batch.deltas.push_back(std::move(delta));
    return stage_->translate(batch).deltas;
  }
  std::vector<wire::TextDelta> start(uint64_t id, std::vector<std::string> stop = {}, bool skip_special = true,
                                     bool include_stop = false) {
    wire::TokenDelta delta{.id = ReqId{id}, .usage = {7, 0, 3}};
    delta.start = wire::DetokenizeStart{std::move(stop), skip_special, include_stop};
    return translate(std::move(delta));
  }
  std::vector<wire::TextDelta> tokens(uint64_t id, std::vector<int32_t> ids) {
    given_ += static_cast<int32_t>(ids.size());
    return translate({.id = ReqId{id}, .tokens = std::move(ids), .usage = {7, given_, 3}});
  }
  std::vector<wire::TextDelta> finish(uint64_t id, wire::Finish end, std::vector<int32_t> ids = {}) {
    given_ += static_cast<int32_t>(ids.size());
    return translate({.id = ReqId{id}, .tokens = std::move(ids), .finish = std::move(end), .usage = {7, given_, 3}});
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  LocalMailbox to_front_;
  std::shared_ptr<Outbox> to_stage_;
  std::unique_ptr<DetokenizerStage> stage_;
  int32_t given_ = 0;
};

TEST_F(DetokenizerStageTest, AcceptedThenTextThenTheEnd) {
  auto out = start(1);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_TRUE(out[0].accepted);
  EXPECT_EQ(out[0].text, "");
  EXPECT_FALSE(out[0].finish);
  EXPECT_EQ(out[0].usage.prompt_tokens, 7);
  EXPECT_EQ(stage_->live_requests(), 1u);

  out = tokens(1, letters("hello"));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_FALSE(out[0].accepted);
  EXPECT_EQ(out[0].text, "hello");
  EXPECT_EQ(out[0].usage.completion_tokens, 5);

  out = finish(1, {.reason = wire::FinishReason::kLength}, letters(" you"));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, " you");
  ASSERT_TRUE(out[0].finish);
  EXPECT_EQ(out[0].finish->reason, wire::FinishReason::kLength);
  EXPECT_EQ(out[0].usage.completion_tokens, 9);
  EXPECT_EQ(stage_->live_requests(), 0u);
}

TEST_F(DetokenizerStageTest, ACharacterOfSeveralTokensComesWhole) {
  start(1);
  const int32_t first = tokenizer_->id_of("\xC3\xA2").value();   // stands for the byte E2
  const int32_t second = tokenizer_->id_of("\xC4\xA4").value();  // 82
  const int32_t third = tokenizer_->id_of("\xC2\xAC").value();   // AC
  EXPECT_TRUE(tokens(1, {first}).empty());                       // no news is no delta
  EXPECT_TRUE(tokens(1, {second}).empty());
  auto out = tokens(1, {third});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "\xE2\x82\xAC");  // the euro sign
  tokens(1, {first});
  out = finish(1, {.reason = wire::FinishReason::kLength});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "\xEF\xBF\xBD");  // what never completed
}

TEST_F(DetokenizerStageTest, SpecialTokensAreSkippedWhereAsked) {
  start(1, {}, true);
  start(2, {}, false);
  auto ids = letters("ab");
  ids.insert(ids.begin() + 1, special("<|im_end|>"));
  EXPECT_EQ(tokens(1, ids).at(0).text, "ab");
  EXPECT_EQ(tokens(2, ids).at(0).text, "a<|im_end|>b");
}

// The text before the stop string, and the tokens counted up to the one that completed it, wherever the tokens of the
// batch are cut into deltas.
TEST_F(DetokenizerStageTest, StopStringsAcrossEveryCut) {
  const std::vector<int32_t> ids = letters("one STOP two");
  for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
    for (bool include : {false, true}) {
      given_ = 0;
      start(1, {"nothing", "STOP"}, true, include);
      std::string text;
      std::vector<wire::TextDelta> all;
      const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(cut);
      for (auto part : {std::vector<int32_t>(ids.begin(), middle), std::vector<int32_t>(middle, ids.end())}) {
        for (auto& delta : tokens(1, part)) all.push_back(delta);
      }
      for (auto& delta : finish(1, {.reason = wire::FinishReason::kAborted})) all.push_back(delta);
      int ends = 0;
      for (const auto& delta : all) {
        text += delta.text;
        ends += delta.finish ? 1 : 0;
      }
      ASSERT_EQ(ends, 1) << cut;
      ASSERT_TRUE(all.back().finish);
      EXPECT_EQ(all.back().finish->reason, wire::FinishReason::kStop);
      EXPECT_EQ(all.back().finish->matched_text, "STOP");
      EXPECT_EQ(all.back().usage.completion_tokens, 8) << cut;  // "one STOP"
      EXPECT_EQ(all.back().usage.prompt_tokens, 7);
      EXPECT_EQ(text, include ? "one STOP" : "one ");
      EXPECT_EQ(stage_->live_requests(), 0u);
    }
  }
}

TEST_F(DetokenizerStageTest, WhatMightBecomeAStopStringIsHeldAndThenGiven) {
  start(1, {"STOP"});
  EXPECT_EQ(tokens(1, letters("a STO")).at(0).text, "a ");
  EXPECT_EQ(tokens(1, letters("x")).at(0).text, "STOx");
  EXPECT_TRUE(tokens(1, letters("ST")).empty());
  const auto out = finish(1, {.reason = wire::FinishReason::kStop, .matched_token = 500});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "ST");
  EXPECT_EQ(out[0].finish->matched_token, 500);
  EXPECT_FALSE(out[0].finish->matched_text);
}

// As the same text's stop string: whichever way the tokens are cut into deltas, the pattern ends the request with the
// token that completes it, and the delta's further tokens and logprobs are not passed on.
TEST_F(DetokenizerStageTest, StopPatternsAcrossEveryCut) {
  const std::vector<int32_t> ids = letters("one 42. two");
  for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
    given_ = 0;
    wire::TokenDelta opening{.id = ReqId{1}};
    opening.start = wire::DetokenizeStart{.stop = {"nothing"}, .stop_regex = {"never", "[0-9]+\\."}};
    translate(opening);
    std::vector<wire::TextDelta> all;
    for (auto [begin, end] : {std::pair<std::size_t, std::size_t>{0, cut}, {cut, ids.size()}}) {
      wire::TokenDelta delta{.id = ReqId{1}, .weight_version = 3};
      for (std::size_t i = begin; i < end; ++i) {
        delta.tokens.push_back(ids[i]);
        delta.logprobs.push_back({.token = ids[i], .logprob = -static_cast<double>(i)});
      }
      delta.usage.completion_tokens = static_cast<int32_t>(end);
      for (auto& out : translate(delta)) all.push_back(out);
    }
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<double> logprobs;
    for (const auto& delta : all) {
      text += delta.text;
      tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
      for (const auto& row : delta.logprobs) logprobs.push_back(row.logprob.value());
      EXPECT_EQ(delta.weight_version, delta.tokens.empty() ? 0u : 3u);
    }
    ASSERT_TRUE(all.back().finish) << cut;
    EXPECT_EQ(all.back().finish->reason, wire::FinishReason::kStop);
    EXPECT_EQ(all.back().finish->matched_text, "[0-9]+\\.");
    EXPECT_EQ(all.back().usage.completion_tokens, 7) << cut;
    EXPECT_EQ(text, "one ");
    EXPECT_EQ(tokens, letters("one 42."));
    EXPECT_EQ(logprobs, (std::vector<double>{0, -1, -2, -3, -4, -5, -6}));
    EXPECT_EQ(stage_->live_requests(), 0u);
  }
}

TEST_F(DetokenizerStageTest, APatternThatGivesUpEndsThatRequestAlone) {
  start(2);
  wire::TokenDelta opening{.id = ReqId{1}};
  opening.start = wire::DetokenizeStart{.stop_regex = {"(a+)+[bc]"}};
  translate(opening);
  const auto out = tokens(1, letters(std::string(100, 'a')));
  ASSERT_EQ(out.size(), 1u);
  ASSERT_TRUE(out[0].finish);
  EXPECT_EQ(out[0].finish->reason, wire::FinishReason::kError);
  EXPECT_EQ(out[0].finish->code, StatusCode::kInvalidArgument);
  EXPECT_NE(out[0].finish->message.find("(a+)+[bc]"), std::string::npos);
  EXPECT_EQ(stage_->live_requests(), 1u);
  EXPECT_EQ(tokens(2, letters("b")).at(0).text, "b");
}

TEST_F(DetokenizerStageTest, TokensWaitForTheirText) {
  start(1, {"STOP"});
  const auto ids = letters("aSTOx");
  auto out = tokens(1, {ids[0]});
  EXPECT_EQ(out.at(0).tokens, (std::vector<int32_t>{ids[0]}));
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(tokens(1, {ids[static_cast<std::size_t>(i)]}).empty());
  out = tokens(1, {ids[4]});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "STOx");
  EXPECT_EQ(out[0].tokens, (std::vector<int32_t>{ids.begin() + 1, ids.end()}));
  EXPECT_EQ(out[0].usage.completion_tokens, 5);
  EXPECT_TRUE(tokens(1, letters("ST")).empty());
  out = finish(1, {.reason = wire::FinishReason::kStop, .matched_token = 500});
  EXPECT_EQ(out.at(0).tokens, letters("ST"));
}

TEST_F(DetokenizerStageTest, HeldTokensAreBounded) {
  start(1);
  const int32_t silent = special("<|im_end|>");  // skipped: makes no text
  std::size_t passed = 0, longest = 0, messages = 0;
  for (std::size_t i = 0; i < 10 * kMaxHeldTokens; ++i) {
    for (const auto& delta : tokens(1, {silent})) {
      passed += delta.tokens.size();
      longest = std::max(longest, delta.tokens.size());
      ++messages;
    }
  }
  EXPECT_EQ(passed, 10 * kMaxHeldTokens);
  EXPECT_EQ(longest, kMaxHeldTokens);
  EXPECT_EQ(messages, 10u);
}

TEST_F(DetokenizerStageTest, TokensOfTwoWeightVersionsDoNotMix) {
  start(1, {"STOP"});
  const auto part = [&](std::string_view text, uint64_t version) {
    return translate({.id = ReqId{1}, .tokens = letters(text), .weight_version = version});
  };
  EXPECT_TRUE(part("S", 1).empty());
  auto out = part("T", 2);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].tokens, letters("S"));
  EXPECT_EQ(out[0].weight_version, 1u);
  out = finish(1, {.reason = wire::FinishReason::kAborted});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "ST");
  EXPECT_EQ(out[0].tokens, letters("T"));
  EXPECT_EQ(out[0].weight_version, 2u);
}

TEST_F(DetokenizerStageTest, LogprobsPassAtOnce) {
  start(1, {"STOP"});
  wire::TokenDelta prompt{.id = ReqId{1}};
  prompt.prompt_logprobs = {{.token = 4}, {.token = 5, .logprob = -1.5, .top_ids = {5}, .top = {-1.5}}};
  auto out = translate(prompt);
  ASSERT_EQ(out.size(), 1u);
  ASSERT_EQ(out[0].prompt_logprobs.size(), 2u);
  EXPECT_FALSE(out[0].prompt_logprobs[0].logprob);
  EXPECT_EQ(out[0].prompt_logprobs[1].top_ids, (std::vector<int32_t>{5}));
  wire::TokenDelta delta{.id = ReqId{1}, .tokens = letters("S")};
  delta.logprobs = {{.token = delta.tokens[0], .logprob = -0.5}};
  out = translate(delta);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "");
  EXPECT_EQ(out[0].tokens, letters("S"));
  ASSERT_EQ(out[0].logprobs.size(), 1u);
  // The end token's logprob comes after those of the tokens.
  delta = {.id = ReqId{1}, .tokens = letters("T"), .finish = wire::Finish{.matched_token = 2}};
  delta.logprobs = {{.token = delta.tokens[0], .logprob = -0.5}, {.token = 2, .logprob = -0.25}};
  out = translate(delta);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].text, "ST");
  ASSERT_EQ(out[0].logprobs.size(), 2u);
  EXPECT_EQ(out[0].logprobs[1].token, 2);
}

// The stop string completes with the last token before an end token: the end token was drawn but does not count.
TEST_F(DetokenizerStageTest, AStopStringBeforeTheEndTokenTakesItsLogprobAway) {
  start(1, {"STOP"});
  wire::TokenDelta delta{.id = ReqId{1}, .tokens = letters("STOP"), .finish = wire::Finish{.matched_token = 2}};
  for (int32_t id : delta.tokens) delta.logprobs.push_back({.token = id, .logprob = -1});
  delta.logprobs.push_back({.token = 2, .logprob = -2});
  const auto out = translate(delta);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].finish->matched_text, "STOP");
  EXPECT_FALSE(out[0].finish->matched_token);
  EXPECT_EQ(out[0].tokens.size(), 4u);
  EXPECT_EQ(out[0].logprobs.size(), 4u);
  EXPECT_EQ(out[0].usage.completion_tokens, 4);
}

TEST_F(DetokenizerStageTest, NewsAfterTheEndIsIgnored) {
  start(1, {"x"});
  ASSERT_TRUE(tokens(1, letters("x")).at(0).finish);
  EXPECT_TRUE(tokens(1, letters("more")).empty());
  EXPECT_TRUE(finish(1, {.reason = wire::FinishReason::kAborted}).empty());
  EXPECT_TRUE(tokens(42, letters("never started")).empty());
}

// The front ignores it where the request has ended; where the state was lost, the client must hear of an end.
TEST_F(DetokenizerStageTest, AnEndWithoutAStateIsAnError) {
  const auto lost = finish(42, {.reason = wire::FinishReason::kLength}, letters("x"));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].text, "");
  EXPECT_EQ(lost[0].finish->reason, wire::FinishReason::kError);
  EXPECT_EQ(lost[0].finish->code, StatusCode::kInternal);
}

TEST_F(DetokenizerStageTest, RefusalsPassWithoutAState) {
  const auto out =
      finish(5, {.reason = wire::FinishReason::kError, .code = StatusCode::kResourceExhausted, .message = "full"});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_FALSE(out[0].accepted);
  EXPECT_EQ(out[0].finish->code, StatusCode::kResourceExhausted);
  EXPECT_EQ(out[0].finish->message, "full");
  EXPECT_EQ(stage_->live_requests(), 0u);
}

TEST_F(DetokenizerStageTest, ErrorsAndAbortsEndARunningRequest) {
  start(1);
  start(2);
  EXPECT_EQ(stage_->live_requests(), 2u);
  tokens(1, letters("so far"));
  const auto failed = finish(1, {.reason = wire::FinishReason::kError, .code = StatusCode::kInternal, .message = "m"});
  EXPECT_EQ(failed.at(0).finish->code, StatusCode::kInternal);
  const auto aborted = finish(2, {.reason = wire::FinishReason::kAborted});
  EXPECT_EQ(aborted.at(0).finish->reason, wire::FinishReason::kAborted);
  EXPECT_EQ(stage_->live_requests(), 0u);
}

TEST_F(DetokenizerStageTest, BadStopStringsEndThatRequestAlone) {
  const auto refused = start(1, {""});
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_FALSE(refused[0].accepted);
  ASSERT_TRUE(refused[0].finish);
  EXPECT_EQ(refused[0].finish->reason, wire::FinishReason::kError);
  EXPECT_EQ(refused[0].finish->code, StatusCode::kInvalidArgument);
  EXPECT_EQ(stage_->live_requests(), 0u);
  EXPECT_TRUE(start(2).at(0).accepted);
}

TEST_F(DetokenizerStageTest, RequestsOfOneBatchDoNotMix) {
  start(1, {"b"});
  start(2);
  wire::TokenBatch batch;
  batch.deltas.push_back({.id = ReqId{2}, .tokens = letters("ab")});
  batch.deltas.push_back({.id = ReqId{1}, .tokens = letters("ab")});
  const auto out = stage_->translate(batch).deltas;
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].id, ReqId{2});
  EXPECT_EQ(out[0].text, "ab");
  EXPECT_FALSE(out[0].finish);
  EXPECT_EQ(out[1].id, ReqId{1});
  EXPECT_EQ(out[1].text, "a");
  EXPECT_TRUE(out[1].finish);
}

TEST_F(DetokenizerStageTest, TheLoopPassesStatusOnAndForgetsADeadSchedulersRequests) {
  const auto send = [&](wire::Message message) { ASSERT_TRUE(to_stage_->send(message).ok()); };
  const auto status = [](uint64_t incarnation, uint64_t steps) {
    wire::StageStatus status;
    status.stage = "scheduler";
    status.incarnation = incarnation;
    status.state = wire::StageState::kReady;
    status.steps = steps;
    return status;
  };
  const auto opened = [&](uint64_t id) {
    wire::TokenBatch batch;
    batch.deltas.push_back({.id = ReqId{id}, .start = wire::DetokenizeStart{}});
    return batch;
  };
  send(status(1, 10));
  send(opened(1));
  send(opened(2));
  send(status(1, 11));  // the same one: nothing is forgotten
  send(status(2, 0));   // a new one
  send(opened(3));
  send(wire::AbortRequest{ReqId{3}});  // not for this stage
  std::thread runner([&] { stage_->run(); });
  std::vector<uint64_t> accepted, steps;
  bool heard_from_itself = false;
  while (accepted.size() < 3 || !heard_from_itself) {
    const auto message = to_front_.inbox->receive(5000);
    ASSERT_TRUE(message.has_value());
    if (const auto* batch = std::get_if<wire::TextBatch>(&*message)) {
      for (const auto& delta : batch->deltas) accepted.push_back(delta.id.value);
    } else if (const auto* news = std::get_if<wire::StageStatus>(&*message)) {
      if (news->stage == "scheduler") steps.push_back(news->steps);
      if (news->stage == "detokenizer") {
        EXPECT_EQ(news->incarnation, kIncarnation);
        EXPECT_EQ(news->state, wire::StageState::kReady);
        heard_from_itself = true;
      }
    }
  }
  stage_->request_stop();
  runner.join();
  EXPECT_EQ(accepted, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(steps, (std::vector<uint64_t>{10, 11, 0}));
  EXPECT_EQ(stage_->live_requests(), 1u);
}

// Three schedulers feed it; the second comes back as a new one. Orders' answers pass through to the front.
TEST_F(DetokenizerStageTest, OnlyTheRestartedSchedulersRequestsAreForgotten) {
  const auto send = [&](wire::Message message) { ASSERT_TRUE(to_stage_->send(message).ok()); };
  const auto status = [](uint32_t replica, uint64_t incarnation) {
    wire::StageStatus status;
    status.stage = replica == 0 ? "scheduler" : fmt::format("scheduler-{}", replica);
    status.incarnation = incarnation;
    status.replica = replica;
    return status;
  };
  for (uint32_t replica : {0, 1, 2}) {
    send(status(replica, 5 + replica));
    wire::TokenBatch batch;
    batch.source = replica;
    for (uint64_t id : {1, 2})
      batch.deltas.push_back({.id = ReqId{10 * replica + id}, .start = wire::DetokenizeStart{}});
    send(batch);
  }
  send(status(1, 9));
  send(status(1, 6));  // late news of the old one
  for (uint32_t replica : {0, 1, 2}) {
    wire::TokenBatch batch;
    batch.source = replica;
    batch.deltas.push_back({.id = ReqId{10 * replica + 1}, .tokens = letters("a"), .finish = wire::Finish{}});
    send(batch);
  }
  send(wire::AdminReply{.id = 4, .stage = "scheduler-1", .code = StatusCode::kConflict, .message = "busy"});
  std::thread runner([&] { stage_->run(); });
  std::vector<uint64_t> ended, lost;
  std::vector<double> states;
  for (bool answered = false; !answered || states.empty();) {
    const auto message = to_front_.inbox->receive(5000);
    ASSERT_TRUE(message.has_value());
    if (const auto* batch = std::get_if<wire::TextBatch>(&*message)) {
      for (const auto& delta : batch->deltas) {
        if (!delta.finish) continue;
        (delta.finish->reason == wire::FinishReason::kStop ? ended : lost).push_back(delta.id.value);
      }
    } else if (const auto* reply = std::get_if<wire::AdminReply>(&*message)) {
      answered = true;
      EXPECT_EQ(reply->id, 4u);
      EXPECT_EQ(reply->stage, "scheduler-1");
      EXPECT_EQ(reply->code, StatusCode::kConflict);
      EXPECT_EQ(reply->message, "busy");
    } else if (const auto* news = std::get_if<wire::StageStatus>(&*message)) {
      if (news->stage != "detokenizer") continue;
      for (const auto& metric : news->metrics) {
        if (metric.name == "detokenizer_states") states.push_back(metric.value);
      }
    }
  }
  stage_->request_stop();
  runner.join();
  EXPECT_EQ(ended, (std::vector<uint64_t>{1, 21}));
  EXPECT_EQ(lost, (std::vector<uint64_t>{11}));
  EXPECT_EQ(stage_->live_requests(), 2u);  // 2 and 22
}

}  // namespace
}  // namespace millrace
