// /v1/realtime in front of a fake engine: sessions, items, turns and answers.
#include <gtest/gtest.h>

#include "api/testing/realtime_harness.h"

namespace millrace::api {
namespace {

using testing::eventually;
using testing::kCreate;
using testing::kText;
using testing::parsed;
using testing::RealtimeClient;

class RealtimeTest : public testing::RealtimeHarness {};

TEST_F(RealtimeTest, ASessionReportsItsFields) {
  auto session = open();
  EXPECT_EQ(created_["object"], "realtime.session");
  EXPECT_EQ(created_["type"], "realtime");
  EXPECT_EQ(created_["model"], "demo");
  EXPECT_EQ(created_["output_modalities"], Json::array({"audio"}));
  EXPECT_EQ(created_["audio"]["output"]["voice"], "chelsie");
  EXPECT_EQ(created_["audio"]["output"]["format"], (Json{{"type", "audio/pcm"}, {"rate", 24000}}));
  EXPECT_TRUE(created_["audio"]["input"]["turn_detection"].is_null()) << "this model takes no audio";
  session->send(R"({"type":"session.update","session":{"type":"realtime","instructions":"Be brief.","temperature":0,
      "max_output_tokens":9,"audio":{"output":{"voice":"Ethan"}}}})");
  const Json updated = session->expect("session.updated")["session"];
  EXPECT_EQ(updated["id"], created_["id"]);
  EXPECT_EQ(updated["instructions"], "Be brief.");
  EXPECT_EQ(updated["max_output_tokens"], 9);
  EXPECT_EQ(updated["temperature"], 0);
  EXPECT_EQ(updated["audio"]["output"]["voice"], "ethan");
}

TEST_F(RealtimeTest, ATextIsAnsweredByEventsInTheirSequence) {
  auto session = open();
  session->send(kText);
  session->expect("session.updated");
  session->user("hi");
  session->send(R"({"type":"response.create","response":{"instructions":"Rhyme.","metadata":{"a":"b"}}})");
  const Json response = session->expect("response.created")["response"];
  EXPECT_EQ(response["status"], "in_progress");
  EXPECT_EQ(response["metadata"], (Json{{"a", "b"}}));
  wait_submitted(1);
  EXPECT_EQ(messages(0), parsed(R"([{"role":"system","content":"Rhyme."},{"role":"user","content":"hi"}])"));
  EXPECT_FALSE(request_.speech);
  engine_.accept(0);
  const Json item = session->expect("response.output_item.added")["item"];
  EXPECT_EQ(item["content"], Json::array());
  EXPECT_EQ(session->expect("conversation.item.added")["item"]["id"], item["id"]);
  EXPECT_EQ(session->expect("response.content_part.added")["part"], (Json{{"type", "text"}, {"text", ""}}));
  engine_.text(0, "Goo", 1);
  EXPECT_EQ(session->expect("response.output_text.delta")["delta"], "Goo");
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 2, "d");
  EXPECT_EQ(session->expect("response.output_text.delta")["delta"], "d");
  EXPECT_EQ(session->expect("response.output_text.done")["text"], "Good");
  EXPECT_EQ(session->expect("response.content_part.done")["part"]["text"], "Good");
  EXPECT_EQ(session->expect("response.output_item.done")["item"]["status"], "completed");
  EXPECT_EQ(session->expect("conversation.item.done")["item"]["content"][0],
            (Json{{"type", "output_text"}, {"text", "Good"}}));
  const Json done = session->expect("response.done")["response"];
  EXPECT_EQ(done["id"], response["id"]);
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["output"][0]["content"][0]["text"], "Good");
  EXPECT_EQ(done["usage"]["input_tokens"], 5);
  EXPECT_EQ(done["usage"]["output_tokens"], 2);
  EXPECT_EQ(done["usage"]["total_tokens"], 7);
  EXPECT_EQ(done["usage"]["input_token_details"]["cached_tokens"], 2);
  // The answer is a part of the conversation.
  session->user("more");
  session->send(kCreate);
  wait_submitted(2);
  EXPECT_EQ(
      messages(1),
      parsed(
          R"([{"role":"user","content":"hi"},{"role":"assistant","content":"Good"},{"role":"user","content":"more"}])"));
}

TEST_F(RealtimeTest, AnAnswerIsSpokenBesideItsTranscript) {
  auto session = open();
  session->user("hi");
  session->send(R"({"type":"response.create","response":{"talker_max_new_tokens":7,"seed":3}})");
  session->expect("response.created");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).speech->voice, "chelsie");
  EXPECT_EQ(engine_.request(0).speech->max_frames, 7);
  engine_.accept(0);
  session->types(3);
  engine_.text(0, "Hey", 1);
  EXPECT_EQ(session->expect("response.output_audio_transcript.delta")["delta"], "Hey");
  const auto samples = tone(2 * kFrame);
  EXPECT_EQ(engine_.audio(0, samples), SinkAnswer::kTaken);
  EXPECT_EQ(decoded(session->expect("response.output_audio.delta")["delta"]), file(samples, AudioFormat::kPcm16));
  engine_.end(0, {.reason = wire::FinishReason::kLength}, 1);
  session->expect("response.output_audio.done");
  EXPECT_EQ(session->expect("response.output_audio_transcript.done")["transcript"], "Hey");
  session->types(3);
  const Json done = session->expect("response.done")["response"];
  EXPECT_EQ(done["status_details"], (Json{{"type", "incomplete"}, {"reason", "max_output_tokens"}}));
  EXPECT_EQ(done["usage"]["output_token_details"], (Json{{"text_tokens", 1}, {"audio_tokens", 2}}));
  const std::string id = done["output"][0]["id"];
  // Half of it was played.
  session->send(R"({"type":"conversation.item.truncate","content_index":0,"audio_end_ms":80,"item_id":")" + id + "\"}");
  EXPECT_EQ(session->expect("conversation.item.truncated")["audio_end_ms"], 80);
  session->send(R"({"type":"conversation.item.retrieve","item_id":")" + id + "\"}");
  EXPECT_EQ(session->expect("conversation.item.retrieved")["item"]["content"][0]["transcript"], "H");
}

TEST_F(RealtimeTest, TheBetaHasOtherNames) {
  auto session = open(true);
  EXPECT_EQ(created_["modalities"], Json::array({"text", "audio"}));
  EXPECT_EQ(created_["input_audio_format"], "pcm16");
  session->send(
      R"({"type":"session.update","session":{"modalities":["text"],"max_response_output_tokens":"inf","voice":"ethan"}})");
  EXPECT_EQ(session->expect("session.updated")["session"]["voice"], "ethan");
  session->send(
      R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}})");
  session->expect("conversation.item.created");
  session->send(kCreate);
  wait_submitted(1);
  engine_.accept(0);
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1, "y");
  const std::vector<std::string> wanted = {
      "response.created",    "response.output_item.added", "conversation.item.created",  "response.content_part.added",
      "response.text.delta", "response.text.done",         "response.content_part.done", "response.output_item.done",
      "response.done"};
  EXPECT_EQ(session->types(wanted.size()), wanted);
}

TEST_F(RealtimeTest, ACancelEndsTheResponseAndTheNextOneRuns) {
  auto session = open();
  session->send(kText);
  session->expect("session.updated");
  session->user("hi");
  EXPECT_EQ(session->refused(R"({"type":"response.cancel"})")["code"], "response_cancel_not_active");
  session->send(kCreate);
  const Json response = session->expect("response.created")["response"];
  const Json second = session->refused(kCreate);
  EXPECT_EQ(second["code"], "conversation_already_has_active_response");
  wait_submitted(1);
  engine_.accept(0);
  session->types(3);
  engine_.text(0, "par", 1);
  session->expect("response.output_text.delta");
  session->send(R"({"type":"response.cancel"})");
  session->types(4);
  const Json done = session->expect("response.done")["response"];
  EXPECT_EQ(done["status"], "cancelled");
  EXPECT_EQ(done["status_details"], (Json{{"type", "cancelled"}, {"reason", "client_cancelled"}}));
  EXPECT_EQ(done["output"][0]["status"], "incomplete");
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(2);
  EXPECT_EQ(engine_.submitted(), 2u);
}

TEST_F(RealtimeTest, ARequestThatIsRefusedFailsAndTheSessionGoesOn) {
  engine_.refuse = [](std::size_t index) {
    return index == 0 ? error(StatusCode::kResourceExhausted, "the queue is full") : ok_status();
  };
  auto session = open();
  session->user("hi");
  session->send(kCreate);
  session->expect("response.created");
  EXPECT_EQ(session->expect("error")["error"]["message"], "the queue is full");
  const Json done = session->expect("response.done")["response"];
  EXPECT_EQ(done["status"], "failed");
  EXPECT_EQ(done["status_details"]["error"]["type"], "rate_limit_error");
  EXPECT_EQ(done["output"], Json::array());
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(2);
  engine_.accept(1);
  session->types(3);
  engine_.end(1, {.reason = wire::FinishReason::kError, .code = StatusCode::kUnavailable, .message = "a stage died"},
              0);
  session->expect("error");
  EXPECT_EQ(session->expect("response.done")["response"]["status_details"]["error"]["message"], "a stage died");
}

TEST_F(RealtimeTest, ItemsHaveAPositionAndCanBeDeleted) {
  auto session = open();
  session->send(kText);
  session->expect("session.updated");
  const auto add = [&](const char* id, const char* previous) {
    session->send(fmt::format(
        R"({{"type":"conversation.item.create","previous_item_id":{},"item":{{"id":"{}","type":"message","role":"user",
        "content":[{{"type":"input_text","text":"{}"}}]}}}})",
        previous, id, id));
    session->expect("conversation.item.added");
    return session->expect("conversation.item.done")["previous_item_id"];
  };
  EXPECT_EQ(add("b", "null"), Json());
  EXPECT_EQ(add("d", "null"), "b");
  EXPECT_EQ(add("a", R"("root")"), Json());
  EXPECT_EQ(add("c", R"("b")"), "b");
  session->send(R"({"type":"conversation.item.delete","item_id":"b"})");
  session->expect("conversation.item.deleted");
  session->send(R"({"type":"response.create","response":{"conversation":"none"}})");
  wait_submitted(1);
  EXPECT_EQ(messages(0),
            parsed(R"([{"role":"user","content":"a"},{"role":"user","content":"c"},{"role":"user","content":"d"}])"));
  EXPECT_TRUE(session->expect("response.created")["response"]["conversation_id"].is_null());
  engine_.accept(0);
  engine_.end(0, {.reason = wire::FinishReason::kStop}, 1, "y");
  const std::vector<std::string> wanted = {"response.output_item.added",
                                           "response.content_part.added",
                                           "response.output_text.delta",
                                           "response.output_text.done",
                                           "response.content_part.done",
                                           "response.output_item.done",
                                           "response.done"};
  EXPECT_EQ(session->types(wanted.size()), wanted);
  session->send(kCreate);
  wait_submitted(2);
  EXPECT_EQ(messages(1), messages(0)) << "the answer is no part of the conversation";
}

TEST_F(RealtimeTest, ADetectedTurnIsAnswered) {
  take_audio();
  auto session = open();
  EXPECT_EQ(created_["audio"]["input"]["turn_detection"]["type"], "server_vad");
  session->send(append(sound(400, 0)));
  session->send(append(sound(500, 0.3)));
  const Json started = session->expect("input_audio_buffer.speech_started");
  EXPECT_EQ(started["audio_start_ms"], 100);
  session->send(append(sound(600, 0)));
  const Json stopped = session->expect("input_audio_buffer.speech_stopped");
  EXPECT_EQ(stopped["audio_end_ms"], 1400);
  EXPECT_EQ(session->expect("input_audio_buffer.committed")["item_id"], started["item_id"]);
  EXPECT_EQ(session->expect("conversation.item.added")["item"]["content"][0]["type"], "input_audio");
  session->expect("conversation.item.done");
  const Json response = session->expect("response.created")["response"];
  wait_submitted(1);
  ASSERT_TRUE(chat(0).media);
  EXPECT_EQ(chat(0).media->size(), 1u);
  EXPECT_EQ(messages(0), parsed(R"([{"role":"user","content":[{"type":"audio"}]}])"));
  engine_.accept(0);
  session->types(3);
  // Who speaks into it interrupts it, and is answered when it has ended.
  session->send(append(sound(500, 0.3)));
  session->expect("input_audio_buffer.speech_started");
  session->types(5);
  const Json done = session->expect("response.done")["response"];
  EXPECT_EQ(done["id"], response["id"]);
  EXPECT_EQ(done["status_details"]["reason"], "turn_detected");
  session->send(append(sound(600, 0)));
  session->types(4);
  session->expect("response.created");
  wait_submitted(2);
  EXPECT_EQ(chat(1).media->size(), 2u);
}

TEST_F(RealtimeTest, NoAnswerBeginsOverSpeech) {
  take_audio();
  auto session = open();
  session->send(append(sound(400, 0) + sound(500, 0.3) + sound(600, 0)));
  while (session->next().value("type", "") != "response.created") continue;
  wait_submitted(1);
  engine_.accept(0);
  // A turn that interrupts it, and the begin of another, before the response has ended.
  session->send(append(sound(500, 0.3) + sound(600, 0) + sound(500, 0.3)));
  for (int begins = 0, ends = 0; begins < 2 || ends < 1;) {
    const std::string type = session->next().value("type", "");
    begins += type == "input_audio_buffer.speech_started";
    ends += type == "response.done";
  }
  session->send(append(sound(600, 0)));
  session->expect("input_audio_buffer.speech_stopped");
  while (session->next().value("type", "") != "response.created") continue;
  wait_submitted(2);
  EXPECT_EQ(chat(1).media->size(), 3u);
}

TEST_F(RealtimeTest, WithoutDetectionTheClientCommits) {
  take_audio();
  auto session = open();
  session->send(R"({"type":"session.update","session":{"audio":{"input":{"turn_detection":null}}}})");
  EXPECT_TRUE(session->expect("session.updated")["session"]["audio"]["input"]["turn_detection"].is_null());
  EXPECT_EQ(session->refused(R"({"type":"input_audio_buffer.commit"})")["code"], "input_audio_buffer_commit_empty");
  session->send(append(sound(300, 0.3)));
  session->send(R"({"type":"input_audio_buffer.clear"})");
  session->expect("input_audio_buffer.cleared");
  session->send(append(sound(300, 0.3)));
  session->send(R"({"type":"input_audio_buffer.commit"})");
  const Json committed = session->expect("input_audio_buffer.committed");
  EXPECT_TRUE(committed["previous_item_id"].is_null());
  EXPECT_EQ(session->expect("conversation.item.added")["item"]["id"], committed["item_id"]);
  EXPECT_EQ(session->expect("conversation.item.done")["item"]["role"], "user");
  EXPECT_EQ(session->refused(append("AAAA"))["param"], "audio") << "three bytes are no samples";
}

}  // namespace
}  // namespace millrace::api
