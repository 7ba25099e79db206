// How a transcript of /v1/audio/transcriptions ends: complete, or with an error instead of what there is of it.
#include <gtest/gtest.h>

#include "api/testing/speech_harness.h"
#include "http/testing/test_client.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

class TranscriptionsTest : public SpeechHarness {
 protected:
  void SetUp() override {
    SpeechHarness::SetUp();
    engine_.facts.media.audio.emplace();
  }
  // Of a form with the file and these fields, as name and value.
  static std::string form(const std::vector<std::pair<std::string, std::string>>& fields) {
    std::string body = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n" +
                       file(tone(10 * kFrame), AudioFormat::kWav);
    for (const auto& [name, value] : fields) {
      body += "\r\n--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value;
    }
    body += "\r\n--b--\r\n";
    return "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; "
           "boundary=b\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // The engine's 'so far' with this finish, at so many tokens.
  http::testing::Reply ended(const std::vector<std::pair<std::string, std::string>>& fields, FinishReason reason,
                             int32_t tokens) {
    const std::size_t index = engine_.submitted();
    http::testing::Client client(server_->port());
    client.send(form(fields));
    wait_submitted(index + 1);
    engine_.accept(index);
    engine_.text(index, " so far", tokens);
    engine_.end(index, {.reason = reason}, tokens);
    return client.read_reply();
  }
};

TEST_F(TranscriptionsTest, ACompleteOneIsTheText) {
  const auto reply = ended({}, FinishReason::kStop, 2);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(parsed(reply.body)["text"], "so far");
  EXPECT_EQ(ended({{"response_format", "text"}}, FinishReason::kStop, 2).body, "so far\n");
}

TEST_F(TranscriptionsTest, AnAbortedOneIsNone) {
  for (const char* format : {"json", "text"}) {
    const auto reply = ended({{"response_format", format}, {"max_tokens", "9"}}, FinishReason::kAborted, 2);
    EXPECT_EQ(reply.status, 499);
    EXPECT_EQ(parsed(reply.body)["error"]["message"], "the request was aborted before its transcript was complete");
  }
  const auto stream = ended({{"stream", "true"}}, FinishReason::kAborted, 2);
  EXPECT_EQ(stream.status, 200) << "the head was out";
  EXPECT_NE(stream.body.find("was aborted"), std::string::npos);
  EXPECT_EQ(stream.body.find("transcript.text.done"), std::string::npos);
  EXPECT_EQ(stream.body.find("[DONE]"), std::string::npos);
}

TEST_F(TranscriptionsTest, TheEndOfTheContextIsAnErrorUnlessTheClientSetTheMost) {
  const auto reply = ended({}, FinishReason::kLength, 59);
  EXPECT_EQ(reply.status, 400);
  const Json error = parsed(reply.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["message"],
            "This model's maximum context length is 64 tokens. However, the prompt has 5 tokens, and its transcript "
            "does not end within the others. Send shorter audio, or max_tokens for the text up to there.");
  EXPECT_EQ(error["n_ctx"], 64);
  const auto stream = ended({{"stream", "true"}}, FinishReason::kLength, 59);
  EXPECT_EQ(stream.body.find("transcript.text.done"), std::string::npos);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto cut = ended({{name, "2"}}, FinishReason::kLength, 2);
    EXPECT_EQ(cut.status, 200);
    EXPECT_EQ(parsed(cut.body)["text"], "so far");
  }
}

TEST_F(TranscriptionsTest, FieldsOfChatAreServedOrRefused) {
  http::testing::Client client(server_->port());
  client.send(form({{"stop", "1"},
                    {"guided_regex", "[0-9]+"},
                    {"cache_salt", "7"},
                    {"priority", "3"},
                    {"stop_token_ids[]", "5"},
                    {"stop_token_ids[]", "6"}}));
  wait_submitted(1);
  const GenerateRequest request = engine_.request(0);
  EXPECT_EQ(request.sampling.stop, std::vector<std::string>{"1"});
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  ASSERT_TRUE(request.sampling.grammar);
  EXPECT_EQ(request.sampling.grammar->text, "[0-9]+");
  EXPECT_FALSE(request.extra_key.empty());
  EXPECT_EQ(request.priority, 3);
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> refused = {
      {{"n", "2"}, "n is not supported; wanted 1 or nothing"},
      {{"logprobs", "true"}, "logprobs is not supported; wanted false or nothing"},
      {{"chat_template_kwargs", R"({"a":1})"}, "chat_template_kwargs is not supported; wanted {} or nothing"},
      {{"temperature", "hot"}, "temperature is a string; wanted a number"},
      {{"model", "\xff"}, "a field of the form is no UTF-8; wanted text"}};
  for (const auto& [field, message] : refused) {
    http::testing::Client other(server_->port());
    other.send(form({field}));
    const auto reply = other.read_reply();
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(parsed(reply.body)["error"]["message"], message);
  }
  http::testing::Client twice(server_->port());
  twice.send(form({{"seed", "1"}, {"seed", "2"}}));
  EXPECT_EQ(parsed(twice.read_reply().body)["error"]["message"], "seed is there twice; wanted one");
}

}  // namespace
}  // namespace millrace::api::testing
