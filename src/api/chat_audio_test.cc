// Chats whose answers are spoken: the fields, what the engine gets, messages, chunks and slow readers.
#include <gtest/gtest.h>

#include "api/audio_output.h"
#include "api/reply_format.h"
#include "api/testing/speech_harness.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kSpoken[] = R"("modalities":["text","audio"],"audio":{"voice":"Ethan","format":"wav"})";

class ChatAudioTest : public SpeechHarness {};

std::string rendered(const ChatPrompt& prompt) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.audio is defined }};{% endfor %}", "test");
  const auto segments = chat->render(prompt.messages, {});
  std::string out;
  if (!segments.ok()) return segments.status().message();
  for (const Segment& segment : *segments) out += segment.text;
  return out;
}

TEST_F(ChatAudioTest, AMessageHasTheCompleteFile) {
  for (const AudioFormat format :
       {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3, AudioFormat::kPcm16}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kChat, chat(fmt::format(R"("modalities":["audio","text"],"audio":{{"format":"{}"}},"seed":3)",
                                               audio_format_name(format))));
    wait_submitted(index + 1);
    engine_.accept(index);
    engine_.text(index, "Hello", 1);
    const std::vector<float> samples = tone(10 * kFrame);
    EXPECT_EQ(engine_.audio(index, {samples.begin(), samples.begin() + 3 * kFrame}), SinkAnswer::kTaken);
    engine_.text(index, " you", 2);
    EXPECT_EQ(engine_.audio(index, {samples.begin() + 3 * kFrame, samples.end()}), SinkAnswer::kTaken);
    engine_.end(index, {.matched_token = 9}, 3);
    const Json body = answer.get().json();
    const Json& message = body["choices"][0]["message"];
    EXPECT_EQ(message["content"], "Hello you");
    EXPECT_EQ(message["audio"]["transcript"], "Hello you");
    EXPECT_TRUE(message["audio"]["id"].get<std::string>().starts_with("audio_"));
    EXPECT_GE(message["audio"]["expires_at"].get<int64_t>(), unix_seconds() + kSpokenTurnSeconds - 600);
    EXPECT_TRUE(decoded(message["audio"]["data"]) == file(samples, format)) << audio_format_name(format);
    EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(body["usage"]["completion_tokens"], 3);
    EXPECT_EQ(body["usage"]["completion_tokens_details"], parsed(R"({"reasoning_tokens":0,"audio_tokens":10})"));
    const wire::SpeechRequest seen = *engine_.request(index).speech;
    EXPECT_EQ(seen, (wire::SpeechRequest{.voice = "chelsie", .seed = 3}));
  }
}

TEST_F(ChatAudioTest, AudioAloneHasNoContent) {
  auto answer = post(kChat, chat(R"("modalities":["audio"],"audio":{"voice":{"id":"ETHAN"}})"));
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).speech->voice, "ethan");
  EXPECT_EQ(engine_.request(0).speech->seed, engine_.request(0).sampling.seed);
  engine_.accept(0);
  engine_.text(0, "Hi.", 1);
  EXPECT_EQ(engine_.audio(0, tone(kFrame + 1000)), SinkAnswer::kTaken);
  engine_.end(0, {.reason = FinishReason::kLength}, 1);
  const Json body = answer.get().json();
  const Json& message = body["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["audio"]["transcript"], "Hi.");
  EXPECT_TRUE(decoded(message["audio"]["data"]).starts_with("RIFF"));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["audio_tokens"], 2);  // 1.52 frames
}

TEST_F(ChatAudioTest, AStreamHasTextAndSamplesAsTheyCome) {
  auto answer =
      post(kChat, chat(R"("modalities":["text","audio"],"audio":{"voice":"ethan","format":"pcm16"},"stream":true,
                                    "stream_options":{"include_usage":true})"));
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  const std::vector<float> samples = tone(3 * kFrame);
  EXPECT_EQ(engine_.audio(0, {samples.begin(), samples.begin() + kFrame}), SinkAnswer::kTaken);
  engine_.text(0, "lo", 2);
  EXPECT_EQ(engine_.audio(0, {samples.begin() + kFrame, samples.end()}), SinkAnswer::kTaken);
  engine_.end(0, {.matched_token = 9}, 3);
  const Answer got = answer.get();
  std::vector<Json> deltas;
  Json usage, reason;
  for (const std::string& event : got.events) {
    if (event == "[DONE]") continue;
    const Json chunk = parsed(event);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (!chunk["usage"].is_null()) usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      EXPECT_TRUE(reason.is_null()) << "the finish is the last chunk";
      deltas.push_back(choice["delta"]), reason = choice["finish_reason"];
    }
  }
  ASSERT_EQ(deltas.size(), 7u);
  const std::string id = deltas[0]["audio"]["id"];
  EXPECT_EQ(deltas[0], Json({{"role", "assistant"}, {"content", ""}, {"audio", {{"id", id}}}}));
  EXPECT_EQ(deltas[1], parsed(R"({"content":"Hel","audio":{"transcript":"Hel"}})"));
  EXPECT_EQ(deltas[3], parsed(R"({"content":"lo","audio":{"transcript":"lo"}})"));
  EXPECT_TRUE(decoded(deltas[2]["audio"]["data"]) + decoded(deltas[4]["audio"]["data"]) ==
              file(samples, AudioFormat::kPcm16));
  EXPECT_GT(deltas[5]["audio"]["expires_at"].get<int64_t>(), unix_seconds());
  EXPECT_EQ(deltas[6], Json::object());
  EXPECT_EQ(reason, "stop");
  EXPECT_EQ(usage["completion_tokens_details"]["audio_tokens"], 3);
  EXPECT_EQ(context_->state->spoken.find(id, unix_seconds()), "Hello");
}

TEST_F(ChatAudioTest, AStreamOfAudioAloneHasNoContent) {
  auto answer = post(kChat, chat(R"("modalities":["audio"],"stream":true)"));
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hi.", 1);
  EXPECT_EQ(engine_.audio(0, tone(kFrame)), SinkAnswer::kTaken);
  engine_.end(0, {}, 1);
  std::string transcript;
  for (const std::string& event : answer.get().events) {
    if (event == "[DONE]") continue;
    const Json delta = parsed(event)["choices"][0]["delta"];
    EXPECT_TRUE(delta.value("content", Json()).is_null()) << event;
    if (delta.contains("audio")) transcript += delta["audio"].value("transcript", "");
  }
  EXPECT_EQ(transcript, "Hi.");
}

TEST_F(ChatAudioTest, ASlowReaderHoldsUpTheEngine) {
  http::Client client({"127.0.0.1", server_->port()}, "");
  std::mutex reading;  // held: the client reads nothing more
  std::size_t got = 0;
  std::unique_lock hold(reading);
  std::thread reader([&] {
    http::SseReader events;
    (void)client.post(kChat, chat(R"("modalities":["audio"],"stream":true)"), [&](std::string_view bytes) {
      std::lock_guard lock(reading);
      events.push(bytes, [&](std::string_view event) {
        if (event != "[DONE]") {
          const Json audio = parsed(event)["choices"][0]["delta"].value("audio", Json::object());
          if (audio.contains("data")) got += decoded(audio["data"]).size();
        }
        return true;
      });
      return true;
    });
  });
  wait_submitted(1);
  engine_.accept(0);
  // Socket buffers take some; behind them, at most the limit and one event wait.
  const std::vector<float> chunk = tone(10 * kFrame);
  constexpr std::size_t kMost = std::size_t{64} << 20;
  std::size_t sent = 0;
  while (sent < kMost && engine_.audio(0, chunk) == SinkAnswer::kTaken) sent += 2 * chunk.size();
  EXPECT_LT(sent, kMost);
  EXPECT_EQ(engine_.audio(0, chunk), SinkAnswer::kFull) << "the same samples again";
  hold.unlock();
  EXPECT_TRUE(eventually([&] { return engine_.audio(0, chunk) == SinkAnswer::kTaken; }));
  sent += 2 * chunk.size();
  engine_.end(0, {}, 1);
  reader.join();
  EXPECT_EQ(got, sent);
  EXPECT_EQ(server_->stats().slow_readers, 0u);
}

TEST_F(ChatAudioTest, ChunksOverEveryLimitAreSentOneByOne) {
  auto answer = post(kChat, chat(R"("modalities":["audio"],"stream":true)"));
  wait_submitted(1);
  engine_.accept(0);
  const std::vector<float> chunk = tone(std::size_t{2} << 20);  // over http's limit as base64
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(eventually([&] { return engine_.audio(0, chunk) == SinkAnswer::kTaken; }));
  }
  engine_.end(0, {}, 1);
  std::size_t bytes = 0;
  for (const std::string& event : answer.get().events) {
    if (event == "[DONE]") continue;
    const Json audio = parsed(event)["choices"][0]["delta"].value("audio", Json::object());
    if (audio.contains("data")) bytes += decoded(audio["data"]).size();
  }
  EXPECT_EQ(bytes, 4 * 2 * chunk.size());
  EXPECT_EQ(server_->stats().slow_readers, 0u);
}

TEST_F(ChatAudioTest, SamplesThatAreNoNumbersAreTheServersError) {
  auto answer = post(kChat, chat(kSpoken));
  auto stream = post(kChat, chat(R"("modalities":["audio"],"stream":true)"));
  wait_submitted(2);
  for (const std::size_t index : {0u, 1u}) {
    engine_.accept(index);
    EXPECT_EQ(engine_.audio(index, {0.0f, std::nanf("")}), SinkAnswer::kTaken);
    engine_.end(index, {}, 1);
  }
  const Answer complete = answer.get();
  EXPECT_EQ(complete.status, 500);
  EXPECT_NE(complete.body.find("the audio of the answer: sample 1"), std::string::npos) << complete.body;
  const Answer broken = stream.get();
  ASSERT_FALSE(broken.events.empty());
  EXPECT_NE(broken.events.back().find("the audio of the answer: sample 1"), std::string::npos);
}

TEST_F(ChatAudioTest, AnErrorAfterTextEndsAll) {
  auto answer = post(kChat, chat(R"("modalities":["text","audio"],"stream":true)"));
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  EXPECT_EQ(engine_.audio(0, tone(kFrame)), SinkAnswer::kTaken);
  engine_.deliver(0, FakeEngine::error_of(0, error(StatusCode::kUnavailable, "vocoder: lost")));
  EXPECT_EQ(engine_.audio(0, tone(kFrame)), SinkAnswer::kTaken) << "late samples are dropped";
  const Answer got = answer.get();
  EXPECT_EQ(parsed(got.events.back())["error"]["message"], "vocoder: lost");
}

TEST_F(ChatAudioTest, AnswersTooLongToHoldAreRefused) {
  auto answer = post(kChat, chat(kSpoken));
  wait_submitted(1);
  engine_.accept(0);
  const std::vector<float> chunk(std::size_t{4} << 20);
  for (std::size_t held = 0; held <= kMaxAnswerBytes; held += 4 * chunk.size()) engine_.audio(0, chunk);
  const Answer got = answer.get();
  EXPECT_EQ(got.status, 400);
  EXPECT_NE(got.body.find("for a stream"), std::string::npos) << got.body;
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0}; }));
}

TEST_F(ChatAudioTest, AnEarlierTurnIsNamedByItsAudio) {
  context_->state->spoken.add("audio_known", "Good morning.", unix_seconds());
  const auto turns = [](std::string_view assistant) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}},{{"role":"assistant",{}}},
                           {{"role":"user","content":"and?"}}]}})",
                       assistant);
  };
  const auto content = [&](std::string_view assistant) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kChat, turns(assistant));
    wait_submitted(index + 1);
    engine_.accept(index), engine_.end(index, {}, 1);
    EXPECT_EQ(answer.get().status, 200);
    return std::get<ChatPrompt>(*engine_.request(index).prompt);
  };
  for (const char* turn : {R"("audio":{"id":"audio_known"})", R"("content":null,"audio":{"id":"audio_known"})",
                           R"("content":"Good morning.","audio":{"id":"audio_known","data":"AAAA","transcript":"x"})",
                           R"("content":"Good morning.","audio":null)"}) {
    EXPECT_EQ(rendered(content(turn)), "user: hiFalse;assistant: Good morning.False;user: and?False;") << turn;
  }
  for (const char* turn : {R"("audio":{"id":"audio_other"})", R"("content":"x","audio":{"id":"audio_other"})"}) {
    EXPECT_TRUE(refused(kChat, turns(turn)).starts_with("messages[1].audio.id is 'audio_other', which is unknown"));
  }
  EXPECT_TRUE(refused("/tokenize", turns(R"("audio":{"id":"audio_other"})")).starts_with("messages[1].audio.id"));
  EXPECT_EQ(post("/tokenize", turns(R"("audio":{"id":"audio_known"})")).get().status, 200);
  context_->state->spoken.add("audio_long", std::string(kMaxNamedTurnsBytes / 2 + 1, 'x'), unix_seconds());
  const std::string twice = turns(R"("audio":{"id":"audio_long"}},{"role":"assistant","audio":{"id":"audio_long"})");
  EXPECT_EQ(refused(kChat, twice),
            "messages[2].audio.id is one of earlier answers with over 4194304 bytes of transcripts; wanted fewer");
  EXPECT_EQ(refused(kChat, turns(R"("audio":"x")")), "messages[1].audio is of type string; wanted an object");
  EXPECT_EQ(refused(kChat, turns(R"("audio":{})")), "messages[1].audio.id is no string; wanted one");
  EXPECT_TRUE(refused(kChat, R"({"messages":[{"role":"user","content":"a","audio":{"id":"audio_known"}}]})")
                  .starts_with("messages[0].audio is set with the role \"user\""));
}

}  // namespace
}  // namespace millrace::api::testing
