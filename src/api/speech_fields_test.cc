// Which fields of speech are read, and what is refused by name.
#include "api/speech_fields.h"

#include <gtest/gtest.h>

#include "api/testing/speech_harness.h"

namespace millrace::api::testing {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kBoth[] = R"("modalities":["text","audio"])";

const SpeechFacts kFacts{.voices = {"chelsie", "ethan"}};

Result<std::optional<ChatSpeech>> read(const std::string& members, bool stream = false) {
  ModelFacts model;
  model.name = "demo";
  model.speech = kFacts;
  return read_chat_speech(*parse_json("{" + members + "}"), model, stream);
}

std::string message_of(const std::string& members, bool stream = false) {
  const auto speech = read(members, stream);
  return speech.ok() ? "" : speech.status().message();
}

TEST(SpeechFields, TextAloneIsNoSpeech) {
  for (const char* members : {"", R"("modalities":null,"audio":null)", R"("modalities":["text"])"}) {
    const auto speech = read(members);
    ASSERT_TRUE(speech.ok()) << speech.status().message();
    EXPECT_FALSE(speech->has_value());
  }
}

TEST(SpeechFields, DefaultsAreTheModels) {
  const auto speech = read(kBoth);
  ASSERT_TRUE(speech.ok() && *speech) << speech.status().message();
  EXPECT_EQ((*speech)->request, (wire::SpeechRequest{.voice = "chelsie"}));
  EXPECT_EQ((*speech)->format, AudioFormat::kWav);
  EXPECT_TRUE((*speech)->text);
  const auto streamed = read(R"("modalities":["audio"])", true);
  EXPECT_EQ((*streamed)->format, AudioFormat::kPcm16);
  EXPECT_FALSE((*streamed)->text);
}

TEST(SpeechFields, CodesAreSampledAsTheRequestWants) {
  const auto read_all = [](const std::string& more) { return (*read(kBoth + ("," + more)))->request; };
  const wire::SpeechRequest all =
      read_all(R"("talker_temperature":0.5,"talker_top_k":7,"talker_top_p":0.25,"talker_repetition_penalty":1.5,
                  "talker_max_new_tokens":99,"talker_do_sample":true)");
  EXPECT_EQ(all, (wire::SpeechRequest{.voice = "chelsie",
                                      .temperature = 0.5,
                                      .top_p = 0.25,
                                      .top_k = 7,
                                      .repetition_penalty = 1.5,
                                      .max_frames = 99}));
  EXPECT_EQ(read_all(R"("talker_do_sample":false,"talker_temperature":1)").temperature, 0);
  EXPECT_EQ(read_all(R"("talker_temperature":1e-9)").temperature, 0);
  EXPECT_EQ(read_all(R"("talker_top_k":0)").top_k, -1);
}

TEST(SpeechFields, WhatIsNotServedIsRefusedByName) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("modalities":[])", R"(modalities is []; wanted ["text"], ["text", "audio"] or ["audio"])"},
      {R"("modalities":"audio")", R"(modalities is "audio"; wanted)"},
      {R"("modalities":["text","video"])", R"(modalities is ["text","video"]; wanted)"},
      {R"("modalities":["audio","audio"])", R"(modalities is ["audio","audio"]; wanted)"},
      {R"("audio":{})", "audio is set without modalities"},
      {R"("modalities":["text"],"audio":{})", "audio is set without modalities"},
      {R"("talker_top_k":5)", "talker_top_k is set without modalities"},
      {R"("modalities":["audio"],"audio":3)", "audio is of type integer; wanted an object"},
      {R"("modalities":["audio"],"audio":{"voice":"Bob"})", "audio.voice is 'Bob'; wanted one of chelsie, ethan"},
      {R"("modalities":["audio"],"audio":{"voice":{}})", "audio.voice is {}; wanted a string, or an object"},
      {R"("modalities":["audio"],"audio":{"voice":["ethan"]})", R"(audio.voice is ["ethan"]; wanted a string)"},
      {R"("modalities":["audio"],"audio":{"format":"aac"})", "audio.format is 'aac'; wanted wav, flac, opus, mp3"},
      {R"("modalities":["audio"],"audio":{"format":7})", "audio"},
      {R"("modalities":["audio"],"talker_temperature":2.5)", "talker_temperature is 2.5; wanted a number in [0, 2]"},
      {R"("modalities":["audio"],"talker_top_p":0)", "talker_top_p is 0; wanted a number in (0, 1]"},
      {R"("modalities":["audio"],"talker_repetition_penalty":3)", "talker_repetition_penalty is 3; wanted"},
      {R"("modalities":["audio"],"talker_top_k":-2)", "talker_top_k is -2; wanted an integer in [-1, "},
      {R"("modalities":["audio"],"talker_max_new_tokens":0)", "talker_max_new_tokens is 0; wanted an integer in [1, "},
      {R"("modalities":["audio"],"talker_do_sample":1)", "talker_do_sample is"},
  };
  for (const auto& [members, wanted] : kCases)
    EXPECT_TRUE(message_of(members).starts_with(wanted)) << message_of(members);
  EXPECT_EQ(message_of(R"("modalities":["audio"],"audio":{"format":"wav"})", true),
            "audio.format is 'wav' in a stream; wanted pcm16, or no stream");
}

class SpeechFieldsTest : public SpeechHarness {};

TEST_F(SpeechFieldsTest, WhatCannotBeSpokenIsRefused) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  const std::string both = kBoth;
  EXPECT_EQ(refused(kChat, chat(both + R"(,"n":2)")), "n is 2; wanted 1 where the answer is spoken (modalities)");
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_TRUE(refused(kChat, chat(both + tools)).starts_with("tools is set; wanted none"));
  EXPECT_TRUE(refused(kChat, chat(both + tools + R"(,"tool_choice":"required")")).starts_with("tools is set"));
  EXPECT_TRUE(refused(kChat, chat(both + R"(,"enable_thinking":true)")).starts_with("enable_thinking is true"));
  EXPECT_TRUE(refused(kChat, chat(both + R"(,"chat_template_kwargs":{"enable_thinking":true})"))
                  .starts_with("enable_thinking is true"));
  EXPECT_TRUE(refused(kChat, chat(both + R"(,"kv_transfer_params":{"transfer_id":"a","do_remote_decode":true})"))
                  .starts_with("kv_transfer_params is set"));
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(SpeechFieldsTest, ReasoningIsClosedAndNothingIsParsed) {
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none",)";
  auto answer = post(kChat, chat(tools + kBoth + R"(,"logprobs":true,"regex":"a+")"));
  wait_submitted(1);
  const GenerateRequest request = engine_.request(0);
  EXPECT_FALSE(request.sampling.parsing);
  EXPECT_TRUE(request.sampling.grammar);
  const ChatPrompt& prompt = std::get<ChatPrompt>(*request.prompt);
  const auto chat = ChatTemplate::parse("{{ enable_thinking }}", "test");
  const auto segments = chat->render(prompt.messages, {.extra = prompt.template_kwargs});
  ASSERT_TRUE(segments.ok());
  EXPECT_EQ(segments->front().text, "False");
  engine_.accept(0);
  engine_.token(0, 7, "a", {5, 1, 0}, -0.5);
  engine_.audio(0, tone(kFrame));
  engine_.end(0, {}, 2);
  const Json choice = answer.get().json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "a");
  EXPECT_EQ(choice["logprobs"]["content"][0]["logprob"], -0.5);
}

TEST_F(SpeechFieldsTest, AModelWithoutSpeechAnswersWithTextAlone) {
  engine_.facts.speech.reset();
  EXPECT_EQ(refused(kChat, chat(kBoth)),
            R"(modalities is ["text","audio"]; wanted ["text"]: the model 'demo' answers with text alone)");
}

TEST_F(SpeechFieldsTest, AModelThatAlwaysReasonsIsNotSpoken) {
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThinkOpen;
  EXPECT_TRUE(refused(kChat, chat(kBoth)).ends_with("this model always reasons first"));
}

TEST_F(SpeechFieldsTest, OtherEndpointsAnswerWithTextAlone) {
  const std::pair<const char*, std::string> kBodies[] = {
      {"/v1/completions", R"({"prompt":"a",)"},
      {"/v1/responses", R"({"input":"a",)"},
      {"/v1/messages", R"({"max_tokens":4,"messages":[{"role":"user","content":"a"}],)"},
  };
  for (const auto& [path, body] : kBodies) {
    EXPECT_EQ(refused(path, body + kBoth + "}"), R"(modalities is not supported; wanted ["text"] or nothing)") << path;
    EXPECT_TRUE(refused(path, body + R"("audio":{"voice":"ethan"}})").starts_with("audio is not supported")) << path;
  }
}

}  // namespace
}  // namespace millrace::api::testing
