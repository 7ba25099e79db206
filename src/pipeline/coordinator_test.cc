#include "pipeline/coordinator.h"

#include <gtest/gtest.h>

#include "pipeline/testing/coordinator_harness.h"

namespace millrace::testing {
namespace {

const std::vector<std::string> kDecodeAlone = {"decode"};

using CoordinatorTest = CoordinatorHarness;

TEST_F(CoordinatorTest, ARequestIsSubmittedAndItsTerminalsMerged) {
  Client client;
  const ReqId id = submit(client);
  const auto submits = box("prepare").take<wire::Submit>();
  ASSERT_EQ(submits.size(), 1u);
  EXPECT_EQ(submits[0].id, id);
  EXPECT_EQ(submits[0].from.session, kSession);
  EXPECT_EQ(submits[0].terminals, (std::vector<std::string>{"decode", "tone"}));
  EXPECT_EQ(submits[0].timeout_ms, 60'000);
  EXPECT_TRUE(same_bits(*restore(submits[0].payload.tree.bytes, {}, {}), Value("input")));
  EXPECT_EQ(core->running(), 1u);

  complete(id, "tone", in_tree(Value("beep")));
  EXPECT_EQ(client.ends, 0);
  complete(id, "decode", in_tree(Value("text")));
  ASSERT_EQ(client.ends, 1);
  EXPECT_TRUE(client.end.status.ok());
  EXPECT_EQ(client.end.state, RequestState::kCompleted);
  EXPECT_TRUE(same_bits(client.end.result, Value(ValueMap{{"decode", "text"}, {"tone", "beep"}})));
  EXPECT_EQ(payloads.forgotten, std::vector<ReqId>{id});
  EXPECT_EQ(core->books().open_aborts, 0u);
  expect_quiet();
}

TEST_F(CoordinatorTest, APromptThatComesLaterIsPlacedThen) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone, .inputs_follow = true});
  EXPECT_TRUE(core->is_live(id));
  EXPECT_TRUE(box("prepare").take<wire::Submit>().empty());
  EXPECT_EQ(core->running(), 0u);
  pass(1000);
  core->set_prompt(id, {.prompt = {1, 2, 3}}, {.tokens = 3, .replica = 1}, now);
  const auto submits = box("prepare").take<wire::Submit>();
  ASSERT_EQ(submits.size(), 1u);
  ASSERT_TRUE(submits[0].generate);
  EXPECT_EQ(submits[0].generate->prompt, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(submits[0].timeout_ms, 59'000);  // the time in the tokenizer counts
  EXPECT_EQ(thinker_of(id), 1u);
  EXPECT_EQ(core->running(), 1u);
  core->set_prompt(id, {.prompt = {4}}, {}, now);  // twice changes nothing
  EXPECT_TRUE(box("prepare").take<wire::Submit>().empty());
  complete(id, "decode", in_tree(Value()));
  EXPECT_EQ(client.ends, 1);
  expect_quiet();
}

TEST_F(CoordinatorTest, ARequestMayEndBeforeItsPromptComes) {
  Client aborted, late, bad, lost;
  const SubmitOptions later{.terminals = kDecodeAlone, .inputs_follow = true};
  const ReqId one = submit(aborted, later), three = submit(bad, later), four = submit(lost, later);
  SubmitOptions hasty = later;
  hasty.timeout_ms = 100;
  const ReqId two = submit(late, hasty);
  core->cancel(one, now);
  EXPECT_EQ(aborted.end.status.code(), StatusCode::kCancelled);
  core->fail(three, invalid_argument("no prompt"), now);
  EXPECT_EQ(bad.end.status.code(), StatusCode::kInvalidArgument);
  pass(250);
  EXPECT_EQ(late.end.status.code(), StatusCode::kDeadline);
  core->down("prepare", 0, 1, "killed", now);
  for (const ReqId id : {one, two, three, four}) core->set_prompt(id, {.prompt = {1}}, {}, now);
  EXPECT_EQ(lost.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(core->books().open_aborts, 0u);  // no stage ever knew of them
  expect_quiet();
}

TEST_F(CoordinatorTest, OneTerminalGivesItsResultItself) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  EXPECT_EQ(box("prepare").take<wire::Submit>()[0].terminals, kDecodeAlone);
  // One that is not of this request's: its chunks and its result are ignored.
  chunk(id, "tone", 0, in_tree(Value("beep")));
  complete(id, "tone", in_tree(Value("beep")), 1);
  EXPECT_EQ(client.ends, 0);
  complete(id, "decode", in_tree(Value("text")));
  ASSERT_EQ(client.ends, 1);
  EXPECT_TRUE(same_bits(client.end.result, Value("text")));
  EXPECT_TRUE(client.chunks.empty());
  EXPECT_EQ(core->books().ignored, 2u);
  complete(id, "decode", in_tree(Value("text")));
  EXPECT_EQ(core->books().late, 1u);
  expect_quiet();
}

TEST_F(CoordinatorTest, TheRuleChoosesTheTerminals) {
  spec.terminals_rule = "by_input";
  library.terminal_rules["by_input"] = [](const Value& v) -> Result<std::vector<std::string>> {
    if (v.is<std::string>()) return std::vector<std::string>{"tone"};
    return invalid_argument("no string");
  };
  make();
  all_join();
  Client good, bad;
  submit(good);
  EXPECT_EQ(box("prepare").take<wire::Submit>()[0].terminals, std::vector<std::string>{"tone"});
  submit(bad, {}, Value(3));
  EXPECT_EQ(bad.ends, 1);
  EXPECT_EQ(bad.end.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(core->books().live, 1u);
}

TEST_F(CoordinatorTest, WrongTerminalsAreRefusedAndNothingIsLeft) {
  const std::vector<std::vector<std::string>> wrong = {{}, {"unknown"}, {"think"}, {"decode", "decode"}};
  for (const auto& terminals : wrong) {
    Client client;
    submit(client, {.terminals = terminals});
    ASSERT_EQ(client.ends, 1);
    EXPECT_EQ(client.end.status.code(), StatusCode::kInvalidArgument) << client.end.status.message();
  }
  EXPECT_TRUE(box("prepare").take<wire::Submit>().empty());
  expect_quiet();
}

TEST_F(CoordinatorTest, ThePayloadIsRefused) {
  payloads.refusal = Status(StatusCode::kResourceExhausted, "no credits");
  Client client;
  const ReqId id = submit(client);
  EXPECT_EQ(client.end.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(payloads.forgotten, std::vector<ReqId>{id});
  expect_quiet();
}

TEST_F(CoordinatorTest, TooManyRequestsAreRefused) {
  Client clients[6];
  std::vector<ReqId> ids;
  for (Client& client : clients) ids.push_back(submit(client));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(clients[i].ends, 0);
  for (int i = 4; i < 6; ++i) {
    ASSERT_EQ(clients[i].ends, 1);
    EXPECT_EQ(clients[i].end.status.code(), StatusCode::kResourceExhausted);
  }
  core->cancel(ids[0], now);
  Client next;
  submit(next);
  EXPECT_EQ(next.ends, 0);
}

TEST_F(CoordinatorTest, OpenAbortsBoundWhatIsAccepted) {
  for (int i = 0; i < 16; ++i) {  // 4 for each of the 4 requests that may be live
    Client client;
    core->cancel(submit(client), now);
    EXPECT_EQ(client.end.status.code(), StatusCode::kCancelled);
  }
  Client refused, accepted;
  submit(refused);
  EXPECT_EQ(refused.end.status.code(), StatusCode::kResourceExhausted);
  acknowledge_aborts();
  submit(accepted);
  EXPECT_EQ(accepted.ends, 0);
}

TEST_F(CoordinatorTest, ChunksComeSortedOnceAndWithTheirNumbers) {
  Client client;
  const ReqId id = submit(client);
  chunk(id, "decode", 0, in_tree(Value("a")));
  chunk(id, "tone", 0, in_tree(Value("x")));
  chunk(id, "decode", 1, in_tree(Value("b")));
  chunk(id, "decode", 0, in_tree(Value("a")));  // repeated
  ASSERT_EQ(client.chunks.size(), 3u);
  EXPECT_EQ(client.texts(), "axb");
  EXPECT_EQ(client.chunks[2].stage, "decode");
  EXPECT_EQ(client.chunks[2].value_chunk()->modality, "text");
  EXPECT_EQ(client.chunks[2].chunk_id, 1u);
  EXPECT_EQ(core->books().repeated, 1u);
  complete(id, "tone", in_tree(Value()), 1);
  complete(id, "tone", in_tree(Value()), 1);  // repeated
  EXPECT_EQ(core->books().repeated, 2u);
  chunk(id, "decode", 2, in_tree(Value("c")));
  EXPECT_EQ(client.ends, 0);
  EXPECT_EQ(client.texts(), "axbc");
  complete(id, "decode", in_tree(Value()), 3);
  EXPECT_EQ(client.ends, 1);
  expect_quiet();
}

TEST_F(CoordinatorTest, AGapFailsTheRequest) {
  Client client;
  const ReqId id = submit(client);
  chunk(id, "decode", 0, in_tree(Value("a")));
  chunk(id, "decode", 2, in_tree(Value("c")));
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(client.end.status.message(), "stage 'decode': chunk 2 of the answer came; wanted chunk 1");
  EXPECT_EQ(client.texts(), "a");  // what came before it
  EXPECT_EQ(core->books().open_aborts, 1u);
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, CountsThatDisagreeFailTheRequest) {
  Client more, fewer, lost;
  const ReqId first = submit(more), second = submit(fewer), third = submit(lost);
  chunk(first, "decode", 0, in_tree(Value("a")));
  complete(first, "decode", in_tree(Value()), 1);
  chunk(first, "decode", 2, in_tree(Value("b")));
  EXPECT_EQ(more.end.status.code(), StatusCode::kInternal);
  chunk(second, "decode", 0, in_tree(Value("a")));
  complete(second, "decode", in_tree(Value()), 0);
  EXPECT_EQ(fewer.end.status.code(), StatusCode::kInternal);
  // The last chunk before the result is missing.
  chunk(third, "decode", 0, in_tree(Value("a")));
  complete(third, "decode", in_tree(Value()), 2);
  EXPECT_EQ(lost.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost.end.status.message(), "stage 'decode': chunk 2 of the answer came; wanted chunk 1");
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, AMissingResultEndsWithTheDeadline) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone, .timeout_ms = 1000});
  chunk(id, "decode", 0, in_tree(Value("a")));
  pass(750);
  EXPECT_EQ(client.ends, 0);
  pass(250);
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kDeadline);
  EXPECT_EQ(client.end.status.message(), "the request took more than 1 s, the limit");
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, ATreeThatIsNoneFailsTheRequest) {
  Client client;
  const ReqId id = submit(client);
  chunk(id, "decode", 0, wire::Payload{.tree = {"\xc1"}});
  ASSERT_EQ(client.ends, 1);
  EXPECT_FALSE(client.end.status.ok());
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, AnyStagesFailureEndsTheRequestAtOnce) {
  Client client, other;
  const ReqId id = submit(client);
  submit(other);
  fail(id, "talk", StatusCode::kTooLarge, "a prompt of 9 tokens; wanted 8");
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kTooLarge);
  EXPECT_EQ(client.end.status.message(), "stage 'talk': a prompt of 9 tokens; wanted 8");
  EXPECT_EQ(core->books().open_aborts, 1u);
  EXPECT_EQ(other.ends, 0);
  // What the others still send of it is ignored.
  chunk(id, "decode", 0, in_tree(Value("a")));
  complete(id, "decode", in_tree(Value("a")), 1);
  fail(id, "think", StatusCode::kInternal, "x");
  EXPECT_EQ(core->books().late, 3u);
  EXPECT_EQ(client.ends, 1);
}

TEST_F(CoordinatorTest, CancelIsIdempotentAndAcknowledgedByEveryStageThatMayHoldTheRequest) {
  Client client;
  const ReqId id = submit(client);
  const uint32_t thinker = thinker_of(id);
  core->cancel(id, now);
  core->cancel(id, now);
  core->cancel(ReqId{12345}, now);
  EXPECT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kCancelled);
  EXPECT_EQ(client.end.state, RequestState::kAborted);
  EXPECT_EQ(core->books().awaited_acks, 5u);
  EXPECT_EQ(box("think", 1 - thinker).take<wire::AbortRequest>().size(), 0u);
  EXPECT_EQ(box("talk").take<wire::AbortRequest>().size(), 1u);
  core->tick(now += 400);
  EXPECT_EQ(box("talk").take<wire::AbortRequest>().size(), 0u);
  core->tick(now += 100);  // sent again to those that did not answer
  for (const std::string stage : {"prepare", "decode", "talk", "tone"}) {
    core->handle(wire::AbortAck{id, from(stage)}, now);
    core->handle(wire::AbortAck{id, from(stage)}, now);
  }
  EXPECT_EQ(core->books().awaited_acks, 1u);
  core->tick(now += 500);
  const auto again = box("think", thinker).take<wire::AbortRequest>();
  EXPECT_EQ(again.size(), 3u);
  EXPECT_EQ(box("talk").take<wire::AbortRequest>().size(), 1u);  // of the second time; none of the third
  core->handle(wire::AbortAck{id, from("think", thinker)}, now);
  expect_quiet();
}

TEST_F(CoordinatorTest, AnAbortWithoutAWordIsJustThat) {
  Client client;
  const ReqId id = submit(client);
  core->abort(id, now);
  EXPECT_EQ(client.ends, 0);
  EXPECT_EQ(core->books().live, 0u);
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, WhatTheEntryStageCannotTakeYetIsPending) {
  box("prepare").full = true;
  Client client, given_up;
  const ReqId id = submit(client);
  const ReqId gone = submit(given_up);
  EXPECT_EQ(core->books().pending, 2u);
  core->cancel(gone, now);
  EXPECT_EQ(core->books().open_aborts, 0u);  // no stage knows of it
  now += 300;
  box("prepare").full = false;
  core->tick(now);
  EXPECT_EQ(core->running(), 1u);
  const auto submits = box("prepare").take<wire::Submit>();
  ASSERT_EQ(submits.size(), 1u);
  EXPECT_EQ(submits[0].id, id);
  EXPECT_EQ(submits[0].timeout_ms, 59'700);
}

// ---- through relays

TEST_F(CoordinatorTest, FetchedChunksKeepTheirSequence) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  chunk(id, "decode", 0, through_relay("zero"));
  chunk(id, "decode", 1, in_tree(Value("b")));
  chunk(id, "decode", 2, through_relay("two"));
  complete(id, "decode", through_relay("result"), 3);
  EXPECT_TRUE(client.chunks.empty());
  payloads.finish("two", Value("c"));
  payloads.finish("result", Value("all"));
  core->tick(now);
  EXPECT_TRUE(client.chunks.empty());
  EXPECT_EQ(core->books().queued_chunks, 3u);
  payloads.finish("zero", Value("a"));
  core->tick(now);
  EXPECT_EQ(client.texts(), "abc");
  ASSERT_EQ(client.ends, 1);
  EXPECT_TRUE(same_bits(client.end.result, Value("all")));
  expect_quiet();
}

// The stage that put it has died, and the relay takes its descriptor for an invalid one: a 400 would be wrong.
TEST_F(CoordinatorTest, ADescriptorThatTheRelayRefusesIsNoFaultOfTheClient) {
  Client client;
  const ReqId id = submit(client);
  chunk(id, "decode", 0, through_relay("a"));
  payloads.finish("a", invalid_argument("the descriptor names a put that is over"));
  core->tick(now);
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(client.end.status.message().find("a put that is over"), std::string::npos);
}

TEST_F(CoordinatorTest, AFetchHasADeadlineAndItsFailureIsTheRequests) {
  Client client, hurried;
  const ReqId id = submit(client);
  const ReqId soon = submit(hurried, {.timeout_ms = 700});
  chunk(id, "decode", 0, through_relay("a"));
  chunk(soon, "decode", 0, through_relay("b"));
  EXPECT_EQ(payloads.timeouts["a"], 10'000);
  EXPECT_EQ(payloads.timeouts["b"], 700);
  payloads.finish("a", Status(StatusCode::kUnavailable, "the peer is dead"));
  core->tick(now);
  ASSERT_EQ(client.ends, 1);
  EXPECT_EQ(client.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(client.end.status.message(), "stage 'decode': chunk 0 could not be fetched: the peer is dead");
  core->cancel(soon, now);
  EXPECT_EQ(core->books().fetches, 1u);
  payloads.finish("b", Value("late"));  // of no request any more
  core->tick(now);
  acknowledge_aborts();
  expect_quiet();
}

TEST_F(CoordinatorTest, WhatIsNotWantedIsFetchedSoThatItsSenderIsRidOfIt) {
  Client client;
  const ReqId id = submit(client, {.terminals = kDecodeAlone});
  complete(id, "tone", through_relay("other"), 0);  // not of this request
  complete(id, "decode", in_tree(Value()));
  EXPECT_EQ(client.ends, 1);
  chunk(id, "decode", 0, through_relay("late"));
  EXPECT_EQ(payloads.open.size(), 2u);
  EXPECT_EQ(core->books().fetches, 2u);
  payloads.finish("late", Value());
  payloads.finish("other", Value());
  core->tick(now);
  expect_quiet();
}

// ---- slow clients

TEST_F(CoordinatorTest, ASlowClientWaitsWithinItsLimitsAndLosesNothing) {
  make({.client_limits = {.max_chunks = 3}});
  all_join();
  Client slow;
  const ReqId id = submit(slow, {.terminals = kDecodeAlone});
  slow.full = true;
  for (int i = 0; i < 3; ++i) chunk(id, "decode", static_cast<uint64_t>(i), in_tree(Value(std::string(1, 'a' + i))));
  complete(id, "decode", in_tree(Value()), 3);
  EXPECT_EQ(slow.ends, 0);
  EXPECT_EQ(core->books().queued_chunks, 3u);
  slow.full = false;
  core->client_ready(id, now);
  EXPECT_EQ(slow.texts(), "abc");
  EXPECT_EQ(slow.ends, 1);
  EXPECT_TRUE(slow.end.status.ok());
  expect_quiet();
}

TEST_F(CoordinatorTest, OverItsLimitsASlowClientFailsAndNoOther) {
  make({.client_limits = {.max_chunks = 3, .max_bytes = 10'000}});
  all_join();
  Client slow, large, other;
  const ReqId first = submit(slow), second = submit(large), third = submit(other);
  slow.full = large.full = true;
  for (uint64_t i = 0; i < 4; ++i) {
    chunk(first, "decode", i, in_tree(Value("x")));
    chunk(third, "decode", i, in_tree(Value("x")));
  }
  ASSERT_EQ(slow.ends, 1);
  EXPECT_EQ(slow.end.status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(slow.end.status.message().find("4 chunks wait for it, the limit is 3"), std::string::npos);
  chunk(second, "decode", 0, in_tree(Value(std::string(10'001, 'x'))));
  EXPECT_EQ(large.end.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(other.texts(), "xxxx");
  EXPECT_EQ(other.ends, 0);
}

// ---- all of them

TEST_F(CoordinatorTest, DrainRefusesWhatIsNewAndLetsRunWhatRuns) {
  Client old, late;
  const ReqId id = submit(old, {.terminals = kDecodeAlone});
  core->drain();
  submit(late);
  EXPECT_EQ(late.end.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(core->health().reason, "shutting down");
  complete(id, "decode", in_tree(Value("text")));
  EXPECT_TRUE(old.end.status.ok());
  core->shut_down(500, true);
  const auto shutdowns = box("tone").take<wire::Shutdown>();
  ASSERT_EQ(shutdowns.size(), 1u);
  EXPECT_EQ(shutdowns[0].grace_ms, 500);
  EXPECT_EQ(shutdowns[0].from.session, kSession);
}

TEST_F(CoordinatorTest, FailAllEndsEveryRequestOnce) {
  Client clients[3];
  std::vector<ReqId> ids;
  for (Client& client : clients) ids.push_back(submit(client));
  core->fail_all(Status(StatusCode::kUnavailable, "the end"), now);
  core->fail_all(Status(StatusCode::kUnavailable, "the end"), now);
  for (const Client& client : clients) {
    EXPECT_EQ(client.ends, 1);
    EXPECT_EQ(client.end.status.message(), "the end");
  }
  acknowledge_aborts();
  expect_quiet();
  Client next;
  submit(next);
  EXPECT_EQ(next.ends, 0);
}

// A stage that outlived a coordinator remembers the ids that ended then.
TEST_F(CoordinatorTest, AnotherSessionHasOtherIds) {
  std::set<uint64_t> ids;
  for (uint64_t session = 1; session <= 40; ++session) {
    Coordinator one(spec, library, {.session = session}, *this, payloads, now);
    const RequestSink ignores = [](RequestEvent&) { return SinkAnswer::kTaken; };
    for (int i = 0; i < 50; ++i) ids.insert(one.open(Value("x"), {}, ignores, now).id.value);
  }
  EXPECT_EQ(ids.size(), 2000u);
  EXPECT_LT(*ids.rbegin(), uint64_t{1} << 53);
}

TEST_F(CoordinatorTest, MessagesThatAreNotForACoordinatorAreCounted) {
  core->handle(wire::AckBatch{}, now);
  core->handle(wire::AbortRequest{}, now);
  core->handle(wire::AdminReply{.id = 99}, now);
  EXPECT_EQ(core->books().unknown, 2u);
  EXPECT_EQ(core->books().late, 1u);
}

}  // namespace
}  // namespace millrace::testing
