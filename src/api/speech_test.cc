// /v1/audio/speech: what the engine gets, files and streams, and what is refused by name.
#include <gtest/gtest.h>

#include <atomic>

#include "api/audio_output.h"
#include "api/testing/speech_harness.h"

namespace millrace::api::testing {
namespace {

constexpr char kSpeech[] = "/v1/audio/speech";
constexpr AudioFormat kFormats[] = {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3,
                                    AudioFormat::kPcm16};

class SpeechTest : public SpeechHarness {
 protected:
  // The engine's part in two chunks, and the answer.
  Answer spoken(std::string_view more, const std::vector<float>& samples) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kSpeech, fmt::format(R"({{"input":"Good morning.",{}}})", more));
    wait_submitted(index + 1);
    engine_.accept(index);
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 3);
    EXPECT_EQ(engine_.audio(index, {samples.begin(), middle}), SinkAnswer::kTaken);
    EXPECT_EQ(engine_.audio(index, {middle, samples.end()}), SinkAnswer::kTaken);
    engine_.end(index, {}, 0);
    return answer.get();
  }
  static std::string as_stream(const std::vector<float>& samples, AudioFormat format) {
    auto stream = AudioStream::create(kRate, format);
    return *stream->write(samples);
  }
};

TEST_F(SpeechTest, TheInputIsTheAssistantsTurn) {
  spoken(R"("voice":"Ethan","instructions":"Whisper.","seed":5,"talker_top_k":3,"rid":"x","priority":7,"speed":1.0,
            "response_format":"pcm","model":"demo","user":"u")",
         tone(kFrame));
  const GenerateRequest request = engine_.request(0);
  EXPECT_EQ(*request.speech, (wire::SpeechRequest{.voice = "ethan", .seed = 5, .top_k = 3, .verbatim = true}));
  EXPECT_EQ(request.max_tokens, 1);
  EXPECT_EQ(request.priority, 7);
  const ChatPrompt& prompt = std::get<ChatPrompt>(*request.prompt);
  EXPECT_TRUE(prompt.continue_final_message);
  EXPECT_FALSE(prompt.add_generation_prompt);
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}!{% endif %}",
      "test");
  const auto segments = chat->render(
      prompt.messages, {.add_generation_prompt = prompt.add_generation_prompt, .continue_final_message = true});
  ASSERT_TRUE(segments.ok()) << segments.status().message();
  std::string text;
  for (const Segment& segment : *segments) text += segment.text;
  EXPECT_EQ(text, "<user>Whisper.</><assistant>Good morning.");
}

TEST_F(SpeechTest, EveryFormatIsAFile) {
  const std::vector<float> samples = tone(10 * kFrame);
  for (const AudioFormat format : kFormats) {
    const Answer answer = spoken(fmt::format(R"("response_format":"{}")", audio_format_name(format)), samples);
    EXPECT_EQ(answer.status, 200);
    const bool as_made = format == AudioFormat::kWav || format == AudioFormat::kPcm16;
    EXPECT_TRUE(answer.body == (as_made ? as_stream(samples, format) : file(samples, format)))
        << audio_format_name(format) << " " << answer.body.size();
  }
  EXPECT_TRUE(spoken(R"("voice":null)", samples).body == file(samples, AudioFormat::kMp3)) << "the default";
  EXPECT_EQ(engine_.request(5).speech->voice, "chelsie");
}

TEST_F(SpeechTest, LongFilesAreEncodedAside) {
  const std::vector<float> samples = tone(kInlineAnswerBytes);  // four bytes each
  EXPECT_TRUE(spoken(R"("response_format":"flac")", samples).body == file(samples, AudioFormat::kFlac));
  const Answer events = spoken(R"("response_format":"flac","stream_format":"sse")", samples);
  ASSERT_EQ(events.events.size(), 2u);
  EXPECT_TRUE(decoded(parsed(events.events[0])["audio"]) == file(samples, AudioFormat::kFlac));
}

TEST_F(SpeechTest, EventsHaveTheAudioAndTheUsage) {
  const std::vector<float> samples = tone(10 * kFrame);
  for (const AudioFormat format : kFormats) {
    const Answer answer =
        spoken(fmt::format(R"("response_format":"{}","stream_format":"sse")", audio_format_name(format)), samples);
    const bool as_made = format == AudioFormat::kWav || format == AudioFormat::kPcm16;
    ASSERT_EQ(answer.events.size(), as_made ? 3u : 2u);
    std::string bytes;
    for (std::size_t i = 0; i + 1 < answer.events.size(); ++i) {
      const Json event = parsed(answer.events[i]);
      EXPECT_EQ(event["type"], "speech.audio.delta");
      bytes += decoded(event["audio"]);
    }
    EXPECT_TRUE(bytes == (as_made ? as_stream(samples, format) : file(samples, format))) << audio_format_name(format);
    EXPECT_EQ(
        parsed(answer.events.back()),
        parsed(R"({"type":"speech.audio.done","usage":{"input_tokens":5,"output_tokens":10,"total_tokens":15}})"));
  }
}

TEST_F(SpeechTest, BytesAreSentWhileTheyAreMade) {
  auto read = std::make_shared<std::atomic<std::size_t>>(0);
  auto exchange = std::async(std::launch::async, [port = server_->port(), read] {
    http::Client client({"127.0.0.1", port}, "");
    auto response = client.post(kSpeech, R"({"input":"a","response_format":"wav"})", [&](std::string_view bytes) {
      *read += bytes.size();
      return true;
    });
    return response.ok() ? response->status : 0;
  });
  wait_submitted(1);
  engine_.accept(0);
  EXPECT_EQ(engine_.audio(0, tone(kFrame)), SinkAnswer::kTaken);
  EXPECT_TRUE(eventually([&] { return read->load() == 44 + 2 * kFrame; })) << "before the end";
  engine_.end(0, {}, 0);
  EXPECT_EQ(exchange.get(), 200);
}

TEST_F(SpeechTest, AnErrorIsAStatusOrBreaksTheAnswerOff) {
  // Before anything is sent: a status.
  for (const char* more : {R"("response_format":"flac")", R"("response_format":"wav")"}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kSpeech, fmt::format(R"({{"input":"a",{}}})", more));
    wait_submitted(index + 1);
    engine_.deliver(index, FakeEngine::error_of(index, error(StatusCode::kResourceExhausted, "the queue is full")));
    EXPECT_EQ(answer.get().status, 429);
  }
  // After: the connection breaks off, so no client takes the file for complete; events have one for it.
  const std::size_t index = engine_.submitted();
  auto bytes = post(kSpeech, R"({"input":"a","response_format":"wav"})");
  wait_submitted(index + 1);
  auto events = post(kSpeech, R"({"input":"a","response_format":"wav","stream_format":"sse"})");
  wait_submitted(index + 2);
  for (const std::size_t i : {index, index + 1}) {
    engine_.accept(i);
    engine_.audio(i, tone(kFrame));
    engine_.deliver(i, FakeEngine::error_of(i, error(StatusCode::kUnavailable, "vocoder: lost")));
  }
  EXPECT_EQ(bytes.get().status, 0) << "the client sees no complete answer";
  EXPECT_EQ(parsed(events.get().events.back())["error"]["message"], "vocoder: lost");
}

TEST_F(SpeechTest, AnAbortedOrSilentAnswerIsNotComplete) {
  const auto ended = [&](const char* more, const wire::Finish& finish, bool audio) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kSpeech, fmt::format(R"({{"input":"a",{}}})", more));
    wait_submitted(index + 1);
    engine_.accept(index);
    if (audio) engine_.audio(index, tone(kFrame));
    engine_.end(index, finish, 0);
    return answer.get();
  };
  const wire::Finish aborted{.reason = wire::FinishReason::kAborted};
  EXPECT_EQ(ended(R"("response_format":"flac")", aborted, true).status, 499);
  EXPECT_EQ(ended(R"("response_format":"wav")", aborted, true).status, 0);
  EXPECT_EQ(ended(R"("response_format":"flac")", {}, false).status, 500);
  EXPECT_EQ(ended(R"("response_format":"pcm")", {}, false).status, 0);
  const Answer events = ended(R"("stream_format":"sse")", {}, false);
  EXPECT_NE(events.events.back().find("has no samples"), std::string::npos);
}

TEST_F(SpeechTest, ASlowReaderHoldsUpTheEngine) {
  http::Client client({"127.0.0.1", server_->port()}, "");
  std::mutex reading;  // held: the client reads nothing more
  std::unique_lock hold(reading);
  std::size_t got = 0;
  std::thread reader([&] {
    (void)client.post(kSpeech, R"({"input":"a","response_format":"pcm"})", [&](std::string_view bytes) {
      std::lock_guard lock(reading);
      got += bytes.size();
      return true;
    });
  });
  wait_submitted(1);
  engine_.accept(0);
  const std::vector<float> chunk = tone(20 * kFrame);
  constexpr std::size_t kMost = std::size_t{64} << 20;
  std::size_t sent = 0;
  while (sent < kMost && engine_.audio(0, chunk) == SinkAnswer::kTaken) sent += 2 * chunk.size();
  EXPECT_LT(sent, kMost);
  hold.unlock();
  EXPECT_TRUE(eventually([&] { return engine_.audio(0, chunk) == SinkAnswer::kTaken; }));
  engine_.end(0, {}, 0);
  reader.join();
  EXPECT_EQ(got, sent + 2 * chunk.size());
}

TEST_F(SpeechTest, WhatIsNotServedIsRefusedByName) {
  const std::string most(4096, 'x');
  const std::pair<std::string, std::string> kCases[] = {
      {R"("voice":"ethan")", "input has 0 characters; wanted 1 to 4096"},
      {R"("input":"")", "input has 0 characters; wanted 1 to 4096"},
      {R"("input":" \n\t")", "input has 3 characters, all of them white space"},
      {R"("input":")" + most + R"(x")", "input has 4097 characters; wanted 1 to 4096"},
      {R"("input":["a"])", "input is"},
      {R"("input":"a","instructions":")" + most + R"(x")", "instructions has 4097 characters; wanted 0 to 4096"},
      {R"("input":"a","voice":"Bob")", "voice is 'Bob'; wanted one of chelsie, ethan"},
      {R"("input":"a","response_format":"aac")", "response_format is 'aac'; wanted wav, flac, opus, mp3 or pcm"},
      {R"("input":"a","stream_format":"json")", "stream_format is 'json'; wanted audio or sse"},
      {R"("input":"a","speed":1.5)", "speed is not supported; wanted 1 or nothing"},
      {R"("input":"a","talker_top_p":2)", "talker_top_p is 2; wanted"},
      {R"("input":"a","seed":1.5)", "seed is 1.5; wanted an integer"},
      {R"("input":"a","temperature":1)", "temperature is not supported"},
      {R"("input":"a","language":"en")", "language is not supported"},
      {R"("input":"a","priority":"x")", "priority is"},
  };
  for (const auto& [members, wanted] : kCases) {
    EXPECT_TRUE(refused(kSpeech, "{" + members + "}").starts_with(wanted)) << members.substr(0, 60);
  }
  EXPECT_EQ(post(kSpeech, R"({"input":"a","model":"other"})").get().status, 404);
  engine_.facts.speech.reset();
  EXPECT_EQ(refused(kSpeech, R"({"input":"a"})"),
            "model is 'demo', which answers with text alone; wanted one that speaks");
  EXPECT_EQ(engine_.submitted(), 0u);
  engine_.facts.speech = SpeechFacts{.voices = {"ethan"}};
  std::string wide;
  for (int i = 0; i < 4096; ++i) wide += "\xC3\xA4";  // two bytes, one character
  auto answer = post(kSpeech, R"({"input":")" + wide + R"(","response_format":"pcm"})");
  wait_submitted(1);
  engine_.accept(0), engine_.audio(0, tone(kFrame)), engine_.end(0, {}, 0);
  EXPECT_EQ(answer.get().status, 200);
}

}  // namespace
}  // namespace millrace::api::testing
