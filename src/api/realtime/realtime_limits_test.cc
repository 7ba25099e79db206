// /v1/realtime: what is refused, what is bounded, and how sessions end.
#include <gtest/gtest.h>

#include "api/testing/realtime_harness.h"

namespace millrace::api {
namespace {

using http::testing::handshake_status;
using testing::eventually;
using testing::kCreate;
using testing::kText;
using testing::parsed;
using testing::RealtimeClient;

class RealtimeLimitsTest : public testing::RealtimeHarness {};

TEST_F(RealtimeLimitsTest, AClientThatLeavesAbortsItsResponseAndLeavesNothing) {
  {
    auto session = open();
    session->user("hi");
    EXPECT_EQ(metric("realtime_sessions"), "1");
    session->send(kCreate);
    wait_submitted(1);
    engine_.accept(0);
    session->drop();
  }
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0}; }));
  EXPECT_TRUE(eventually([&] { return metric("realtime_sessions") == "0"; }));
  EXPECT_EQ(metric("realtime_bytes"), "0");
  EXPECT_EQ(context_->state->live.size(), 0u);
}

TEST_F(RealtimeLimitsTest, WhatIsNotServedIsRefusedByItsName) {
  take_audio();
  auto session = open();
  const auto update = [&](const std::string& fields) {
    const Json error = session->refused(R"({"type":"session.update","event_id":"mine","session":{)" + fields + "}}");
    EXPECT_EQ(error["event_id"], "mine");
    EXPECT_EQ(error["type"], "invalid_request_error");
    return std::string(error["param"].is_string() ? error["param"] : error["message"]);
  };
  EXPECT_EQ(update(R"("tools":[{"type":"function","name":"f"}])"), "session.tools");
  EXPECT_EQ(update(R"("tracing":"auto")"), "session.tracing");
  EXPECT_EQ(update(R"("type":"transcription")"), "session.type");
  EXPECT_EQ(update(R"("modalities":["text"])"), "session.modalities") << "of the beta";
  EXPECT_EQ(update(R"("output_modalities":["text","audio"])"), "session.output_modalities");
  EXPECT_EQ(update(R"("max_output_tokens":0)"), "session.max_output_tokens");
  EXPECT_EQ(update(R"("temperature":3)"), "session.temperature");
  EXPECT_EQ(update(R"("model":"other")"), "session.model");
  EXPECT_EQ(update(R"("truncation":"auto")"), "session.truncation");
  EXPECT_EQ(update(R"("audio":{"output":{"voice":"alloy"}})"), "session.audio.output.voice");
  EXPECT_EQ(update(R"("audio":{"output":{"speed":2}})"), "session.audio.output.speed");
  EXPECT_EQ(update(R"("audio":{"input":{"format":{"type":"audio/pcmu"}}})"), "session.audio.input.format.type");
  EXPECT_EQ(update(R"("audio":{"input":{"transcription":{"model":"whisper-1"}}})"),
            "session.audio.input.transcription.model");
  EXPECT_EQ(update(R"("audio":{"input":{"turn_detection":{"type":"semantic_vad"}}})"),
            "session.audio.input.turn_detection.type");
  EXPECT_EQ(update(R"("audio":{"input":{"turn_detection":{"type":"server_vad","threshold":2}}})"),
            "session.audio.input.turn_detection.threshold");
  EXPECT_EQ(update(R"("audio":{"input":{"turn_detection":{"type":"server_vad","idle_timeout_ms":5000}}})"),
            "session.audio.input.turn_detection.idle_timeout_ms");
  session->send(R"({"type":"session.update","session":{}})");
  const Json unchanged = session->expect("session.updated")["session"];
  EXPECT_EQ(unchanged, created_);
  EXPECT_EQ(session->refused(R"({"type":"response.create","response":{"input":[]}})")["param"], "response.input");
}

TEST_F(RealtimeLimitsTest, WhatIsNoEventIsAnErrorAndTheSessionGoesOn) {
  auto session = open();
  for (
      const char* wrong :
      {"",
       "{",
       "[]",
       "1",
       "null",
       R"({"a":1,"a":2})",
       R"({"type":7})",
       R"({"event_id":"x"})",
       R"({"type":"no.such"})",
       R"({"type":"session.update"})",
       R"({"type":"session.update","session":7})",
       R"({"type":"conversation.item.create"})",
       R"({"type":"conversation.item.create","item":{"type":"function_call"}})",
       R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[]}})",
       R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"video"}]}})",
       R"({"type":"conversation.item.create","previous_item_id":"none","item":{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}})",
       R"({"type":"conversation.item.delete","item_id":"none"})",
       R"({"type":"conversation.item.truncate","item_id":"x"})",
       R"({"type":"input_audio_buffer.append","audio":"AAAA"})",
       R"({"type":"input_audio_buffer.commit"})",
       R"({"type":"response.create","response":{"conversation":"other"}})",
       kCreate}) {
    const Json error = session->refused(wrong);
    EXPECT_TRUE(error["message"].is_string()) << wrong;
    EXPECT_EQ(error["type"], "invalid_request_error") << wrong << error.dump();
  }
  EXPECT_EQ(engine_.submitted(), 0u);
  session->user("still here");
}

TEST_F(RealtimeLimitsTest, AModelOfTextIsServedAndAudioRefusedByItsName) {
  make_text_only();
  auto session = open();
  EXPECT_EQ(created_["output_modalities"], Json::array({"text"}));
  EXPECT_EQ(session->refused(R"({"type":"session.update","session":{"output_modalities":["audio"]}})")["param"],
            "session.output_modalities");
  EXPECT_EQ(session->refused(append("AAAA"))["param"], "input_audio_buffer");
  EXPECT_EQ(session->refused(
                R"({"type":"session.update","session":{"audio":{"input":{"turn_detection":{"type":"server_vad"}}}}})")
                ["param"],
            "session.audio.input.turn_detection");
  session->refused(
      R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_audio","audio":"AAAA"}]}})");
  session->user("hi");
  session->send(kCreate);
  session->expect("response.created");
}

TEST_F(RealtimeLimitsTest, TheHandshakeKnowsItsModelAndItsLimits) {
  EXPECT_EQ(handshake_status(server_->port(), "/v1/realtime?model=other"), 404);
  EXPECT_EQ(handshake_status(server_->port(), "/v1/realtime?intent=transcription"), 400);
  EXPECT_EQ(handshake_status(server_->port(), "/v1/realtime?call_id=x"), 400);
  EXPECT_EQ(get("/v1/realtime").status, 426);
  std::vector<std::unique_ptr<RealtimeClient>> sessions;
  for (std::size_t i = 0; i < kMaxRealtimeSessions; ++i) sessions.push_back(open());
  EXPECT_EQ(handshake_status(server_->port(), "/v1/realtime"), 503);
  sessions.front()->close();
  EXPECT_TRUE(eventually([&] { return RealtimeClient(server_->port()).open(); }));
}

TEST_F(RealtimeLimitsTest, AConversationIsBounded) {
  auto session = open();
  const std::string text(4 << 20, 'x');
  const std::string event =
      R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_text","text":")" +
      text + R"("}]}})";
  for (std::size_t held = 0; held + text.size() <= kMaxRealtimeConversationBytes; held += text.size()) {
    session->send(event);
    session->expect("conversation.item.added");
    session->expect("conversation.item.done");
  }
  EXPECT_NE(session->refused(event)["message"].get<std::string>().find("wanted at most 33554432"), std::string::npos);
  EXPECT_EQ(metric("realtime_bytes"), "33554432");
}

TEST_F(RealtimeLimitsTest, TheSettingsOfASessionAreBoundedAndCounted) {
  auto session = open();
  const auto update = [](std::size_t bytes) {
    return R"({"type":"session.update","session":{"type":"realtime","chat_template_kwargs":{"a":")" +
           std::string(bytes, 'x') + R"("}}})";
  };
  EXPECT_NE(session->refused(update(kMaxSettingsBytes))["message"].get<std::string>().find("wanted at most 1048576"),
            std::string::npos);
  EXPECT_EQ(metric("realtime_bytes"), "0");
  session->send(update(1000));
  session->expect("session.updated");
  EXPECT_TRUE(eventually([&] { return std::stoi(metric("realtime_bytes")) > 1000; }));
}

TEST_F(RealtimeLimitsTest, AServerThatStopsEndsWhatRunsAndCloses) {
  auto idle = open();
  auto busy = open();
  busy->send(kText);
  busy->expect("session.updated");
  busy->user("hi");
  busy->send(kCreate);
  wait_submitted(1);
  engine_.accept(0);
  server_->stop_accepting();
  EXPECT_EQ(idle->read(), "");
  EXPECT_EQ(idle->close_code(), 1001);
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1, "y");
  while (busy->next().value("type", "") != "response.done") continue;
  EXPECT_EQ(busy->read(), "");
  EXPECT_EQ(busy->close_code(), 1001);
}

}  // namespace
}  // namespace millrace::api
