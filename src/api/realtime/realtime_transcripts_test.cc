// Transcripts of the user's speech in /v1/realtime, in front of a fake engine.
#include <gtest/gtest.h>

#include "api/testing/realtime_harness.h"

namespace millrace::api {
namespace {

using testing::kCreate;
using testing::parsed;
using testing::RealtimeClient;

constexpr const char* kEvents = "conversation.item.input_audio_transcription.";

class RealtimeTranscriptsTest : public testing::RealtimeHarness {
 protected:
  std::unique_ptr<RealtimeClient> open_with(const std::string& transcription) {
    take_audio();
    auto session = open();
    EXPECT_TRUE(created_["audio"]["input"]["transcription"].is_null());
    session->send(
        R"({"type":"session.update","session":{"output_modalities":["text"],"audio":{"input":{"turn_detection":
        null,"transcription":)" +
        transcription + "}}}}");
    updated_ = session->expect("session.updated")["session"];
    return session;
  }
  // The id of the item that comes of it.
  static std::string commit(RealtimeClient& session) {
    session.send(append(sound(300, 0.3)));
    session.send(R"({"type":"input_audio_buffer.commit"})");
    const std::string id = session.expect("input_audio_buffer.committed")["item_id"];
    session.expect("conversation.item.added");
    session.expect("conversation.item.done");
    return id;
  }
  static std::string named(const char* event) { return std::string(kEvents) + event; }
  static Json retrieved(RealtimeClient& session, const std::string& id) {
    session.send(R"({"type":"conversation.item.retrieve","item_id":")" + id + "\"}");
    return session.expect("conversation.item.retrieved")["item"]["content"][0];
  }
  Json updated_;
};

TEST_F(RealtimeTranscriptsTest, WhatIsSpokenIsWrittenDownBesideTheAnswers) {
  auto session = open_with(R"({"model":"demo","language":"en","prompt":"Millrace"})");
  EXPECT_EQ(updated_["audio"]["input"]["transcription"],
            parsed(R"({"model":"demo","language":"en","prompt":"Millrace"})"));
  const std::string id = commit(*session);
  wait_submitted(1);
  EXPECT_EQ(messages(0), parsed(R"([{"role":"user","content":[{"type":"audio"},
      {"type":"text","text":"Transcribe the English audio into text.\nIts context and spelling: Millrace"}]}])"));
  EXPECT_EQ(request_.sampling.temperature, 0);
  EXPECT_FALSE(request_.speech);
  engine_.accept(0);
  engine_.text(0, " Good", 1);
  const Json delta = session->expect(named("delta"));
  EXPECT_EQ(delta["item_id"], id);
  EXPECT_EQ(delta["content_index"], 0);
  EXPECT_EQ(delta["delta"], "Good");
  // The answer to it does not wait for the transcript.
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(2);
  EXPECT_EQ(messages(1), parsed(R"([{"role":"user","content":[{"type":"audio"}]}])"));
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 2, " day \n");
  EXPECT_EQ(session->expect(named("delta"))["delta"], " day \n");
  const Json completed = session->expect(named("completed"));
  EXPECT_EQ(completed["transcript"], "Good day");
  EXPECT_EQ(completed["usage"]["type"], "tokens");
  EXPECT_EQ(completed["usage"]["input_tokens"], 5);
  EXPECT_EQ(completed["usage"]["output_tokens"], 2);
  EXPECT_EQ(completed["usage"]["total_tokens"], 7);
  EXPECT_EQ(retrieved(*session, id), parsed(R"({"type":"input_audio","transcript":"Good day"})"));
}

TEST_F(RealtimeTranscriptsTest, TurnsHaveTheirsOneAfterTheOther) {
  auto session = open_with(R"({"model":"demo"})");
  const std::string first = commit(*session), second = commit(*session), third = commit(*session);
  wait_submitted(1);
  session->send(R"({"type":"conversation.item.delete","item_id":")" + second + "\"}");
  session->expect("conversation.item.deleted");
  EXPECT_EQ(messages(0)[0]["content"][1]["text"], "Transcribe the audio into text.");
  engine_.accept(0);
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1, "one");
  session->expect(named("delta"));
  EXPECT_EQ(session->expect(named("completed"))["item_id"], first);
  wait_submitted(2);
  engine_.accept(1);
  engine_.end(1, {.reason = wire::FinishReason::kStop}, 1, "three");
  EXPECT_EQ(session->expect(named("delta"))["item_id"], third);
  EXPECT_EQ(session->expect(named("completed"))["transcript"], "three");
  EXPECT_TRUE(retrieved(*session, first)["transcript"] == "one");
}

TEST_F(RealtimeTranscriptsTest, OneThatFailsCostsTheTranscriptAlone) {
  auto session = open_with(R"({"model":"demo"})");
  const std::string id = commit(*session);
  wait_submitted(1);
  engine_.end(0, {.reason = wire::FinishReason::kError, .code = StatusCode::kResourceExhausted, .message = "full"}, 0);
  const Json failed = session->expect(named("failed"));
  EXPECT_EQ(failed["item_id"], id);
  EXPECT_EQ(failed["error"]["message"], "full");
  EXPECT_TRUE(retrieved(*session, id)["transcript"].is_null());
  // So does one without an end.
  commit(*session);
  wait_submitted(2);
  const int32_t limit = engine_.request(1).max_tokens.value_or(0);
  EXPECT_GT(limit, 64);
  engine_.accept(1);
  engine_.end(1, {.reason = wire::FinishReason::kLength}, limit, "la la la");
  session->expect(named("delta"));
  EXPECT_NE(session->expect(named("failed"))["error"]["message"].get<std::string>().find("more than"),
            std::string::npos);
}

TEST_F(RealtimeTranscriptsTest, AnAbortAndTheEndOfTheContextAreNamed) {
  auto session = open_with(R"({"model":"demo"})");
  const std::string id = commit(*session);
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "so", 1);
  session->expect(named("delta"));
  engine_.end(0, {.reason = wire::FinishReason::kAborted}, 1);
  EXPECT_EQ(session->expect(named("failed"))["error"]["message"],
            "the request was aborted before its transcript was complete");
  EXPECT_TRUE(retrieved(*session, id)["transcript"].is_null());
  commit(*session);
  wait_submitted(2);
  engine_.accept(1);
  engine_.end(1, {.reason = wire::FinishReason::kLength}, 4091);
  const Json error = session->expect(named("failed"))["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_TRUE(error["message"].get<std::string>().ends_with("the others. Send shorter audio.")) << error;
  // Below its limit, within the context.
  commit(*session);
  wait_submitted(3);
  engine_.accept(2);
  engine_.end(2, {.reason = wire::FinishReason::kLength}, 9);
  const std::string message = session->expect(named("failed"))["error"]["message"];
  EXPECT_TRUE(message.ends_with("does not end within the KV cache. Send shorter audio.")) << message;
}

TEST_F(RealtimeTranscriptsTest, WhatIsNotServedIsRefusedByName) {
  auto session = open_with("null");
  const auto refused = [&](const std::string& transcription) {
    return session
        ->refused(R"({"type":"session.update","session":{"audio":{"input":{"transcription":)" + transcription +
                  "}}}}")["message"]
        .get<std::string>();
  };
  EXPECT_NE(refused(R"({"model":"whisper-1"})").find("session.audio.input.transcription.model"), std::string::npos);
  EXPECT_NE(refused(R"({"language":"xx"})").find("transcription.language is 'xx'; wanted one of en"),
            std::string::npos);
  EXPECT_NE(refused(R"({"delay":"low"})").find("transcription.delay is not supported"), std::string::npos);
  EXPECT_NE(refused("7").find("wanted an object"), std::string::npos);
  commit(*session);  // without one: nothing is asked of the model
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(1);
  EXPECT_EQ(messages(0), parsed(R"([{"role":"user","content":[{"type":"audio"}]}])"));
}

TEST_F(RealtimeTranscriptsTest, AModelOfTextAloneRefusesThem) {
  auto session = open();
  EXPECT_NE(
      session
          ->refused(R"({"type":"session.update","session":{"audio":{"input":{"transcription":{"model":"demo"}}}}})")
              ["message"]
          .get<std::string>()
          .find("takes no audio"),
      std::string::npos);
}

TEST_F(RealtimeTranscriptsTest, TheBetaNamesThemFlat) {
  take_audio();
  auto session = open(true);
  EXPECT_TRUE(created_["input_audio_transcription"].is_null());
  session->send(R"({"type":"session.update","session":{"turn_detection":null,
      "input_audio_transcription":{"model":"demo"}}})");
  EXPECT_EQ(session->expect("session.updated")["session"]["input_audio_transcription"]["model"], "demo");
  session->send(append(sound(300, 0.3)));
  session->send(R"({"type":"input_audio_buffer.commit"})");
  session->types(2);
  wait_submitted(1);
  engine_.accept(0);
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1, "one");
  session->expect(named("delta"));
  EXPECT_EQ(session->expect(named("completed"))["transcript"], "one");
}

}  // namespace
}  // namespace millrace::api
