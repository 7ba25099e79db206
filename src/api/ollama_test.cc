// What Ollama's clients get for what the engine reports, over real sockets. Shapes are those of Ollama's API reference.
#include <gtest/gtest.h>

#include "api/ollama_models.h"
#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using Kind = wire::OutputEvent::Kind;
using wire::FinishReason;

constexpr char kChat[] = "/api/chat";
constexpr char kGenerate[] = "/api/generate";
constexpr char kBody[] = R"({"model":"demo","messages":[{"role":"user","content":"hi"}])";

class OllamaTest : public ApiHarness {
 protected:
  void SetUp() override {
    ApiHarness::SetUp();
    engine_.facts.has_chat_template = true;
  }
  static std::vector<Json> lines_of(const Answer& answer) {
    std::vector<Json> out;
    std::size_t begin = 0;
    for (std::size_t end; (end = answer.body.find('\n', begin)) != std::string::npos; begin = end + 1) {
      out.push_back(parsed(answer.body.substr(begin, end - begin)));
    }
    EXPECT_EQ(begin, answer.body.size()) << "a line without an end";
    return out;
  }
  // Without what differs between two answers.
  static Json shown(Json line) {
    EXPECT_EQ(line["created_at"].get<std::string>().size(), 27U) << line["created_at"];
    for (const char* key : {"created_at", "total_duration", "prompt_eval_duration", "eval_duration"}) line.erase(key);
    if (line.contains("message") && line["message"].contains("tool_calls")) {
      for (Json& call : line["message"]["tool_calls"]) {
        EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
        call.erase("id");
      }
    }
    return line;
  }
};

TEST_F(OllamaTest, Complete) {
  auto answer =
      post(kChat, std::string(kBody) + R"(,"stream":false,"options":{"num_predict":7,"stop":"X","top_k":3}})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, 7);
  EXPECT_EQ(engine_.request(0).sampling.stop, std::vector<std::string>{"X"});
  EXPECT_EQ(engine_.request(0).sampling.top_k, 3);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_text = "X"}, 3, "lo");
  const Json body = answer.get().json();
  EXPECT_EQ(shown(body), parsed(R"({"model":"demo","message":{"role":"assistant","content":"Hello"},"done":true,)"
                                R"("done_reason":"stop","load_duration":0,"prompt_eval_count":5,"eval_count":3})"));
  const int64_t total = body["total_duration"], prompt = body["prompt_eval_duration"], text = body["eval_duration"];
  EXPECT_GT(total, 0);
  EXPECT_GT(prompt, 0);
  EXPECT_GE(text, 0);
  EXPECT_LE(prompt + text, total);
}

TEST_F(OllamaTest, StreamedByDefault) {
  auto answer = post(kChat, std::string(kBody) + "}");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, std::nullopt);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.text(0, "lo", 2);
  engine_.end(0, {.reason = FinishReason::kLength}, 3);
  const std::vector<Json> lines = lines_of(answer.get());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(shown(lines[0]), parsed(R"({"model":"demo","message":{"role":"assistant","content":"Hel"},"done":false})"));
  EXPECT_EQ(shown(lines[1]), parsed(R"({"model":"demo","message":{"role":"assistant","content":"lo"},"done":false})"));
  EXPECT_EQ(shown(lines[2]),
            parsed(R"({"model":"demo","message":{"role":"assistant","content":""},"done":true,)"
                   R"("done_reason":"length","load_duration":0,"prompt_eval_count":5,"eval_count":3})"));
}

TEST_F(OllamaTest, GenerateFillsTheTemplateOrTakesTheTextItself) {
  for (const auto& [more, raw] : {std::pair(R"(,"system":"s"})", false), {R"(,"raw":true})", true}}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kGenerate, R"({"prompt":"a","stream":false)" + std::string(more));
    wait_submitted(index + 1);
    EXPECT_EQ(std::holds_alternative<TextPrompt>(*engine_.request(index).prompt), raw);
    engine_.accept(index);
    engine_.end(index, {}, 3, "Hello");
    EXPECT_EQ(shown(answer.get().json()),
              parsed(R"({"model":"demo","response":"Hello","done":true,"done_reason":"stop","load_duration":0,)"
                     R"("prompt_eval_count":5,"eval_count":3})"));
  }
}

TEST_F(OllamaTest, ThinkingAndCallsStreamedAndNot) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";
  const std::string calls = R"([{"function":{"index":0,"name":"f","arguments":{"a":1}}},)"
                            R"({"function":{"index":1,"name":"f","arguments":{}}}])";
  auto complete = post(kChat, std::string(kBody) + tools + R"(,"stream":false})");
  wait_submitted(1);
  deliver_two_calls(0);
  EXPECT_EQ(shown(complete.get().json())["message"],
            parsed(R"({"role":"assistant","content":"soon","thinking":"hm","tool_calls":)" + calls + "}"));
  auto streamed = post(kChat, std::string(kBody) + tools + "}");
  wait_submitted(2);
  deliver_two_calls(1);
  std::string content, thinking;
  Json called = Json::array();
  for (const Json& line : lines_of(streamed.get())) {
    const Json message = shown(line)["message"];
    content += message["content"];
    thinking += message.value("thinking", "");
    for (const Json& call : message.value("tool_calls", Json::array())) called.push_back(call);
  }
  EXPECT_EQ(content, "soon");
  EXPECT_EQ(thinking, "hm");
  EXPECT_EQ(called, parsed(calls));
}

TEST_F(OllamaTest, ACallOnSeveralLinesIsOneLine) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  auto answer = post(kChat, std::string(kBody) + R"(,"tools":[{"type":"function","function":{"name":"f"}}]})");
  wait_submitted(1);
  engine_.accept(0);
  events(0, {{Kind::kCallBegin, "f"}, {Kind::kArguments, "{\n \"a\": \"b\\nc\"\r\n}"}, {Kind::kCallEnd, ""}});
  engine_.end(0, {}, 4);
  const std::vector<Json> lines = lines_of(answer.get());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["message"]["tool_calls"][0]["function"]["arguments"], parsed(R"({"a":"b\nc"})"));
}

TEST_F(OllamaTest, FormatIsAGrammar) {
  for (const auto& [format, wanted] :
       {std::pair(R"("json")", R"({"type":"object"})"), {R"({"b":1,"a":2})", R"({"b":1,"a":2})"}}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kChat, std::string(kBody) + R"(,"stream":false,"format":)" + format + "}");
    wait_submitted(index + 1);
    ASSERT_TRUE(engine_.request(index).sampling.grammar);
    EXPECT_EQ(engine_.request(index).sampling.grammar->text, wanted) << "the keys in the client's sequence";
    engine_.end(index, {}, 1);
    EXPECT_EQ(answer.get().status, 200);
  }
  auto none = post(kChat, std::string(kBody) + R"(,"stream":false,"format":""})");
  wait_submitted(3);
  EXPECT_FALSE(engine_.request(2).sampling.grammar);
  engine_.end(2, {}, 1);
  none.get();
}

TEST_F(OllamaTest, Logprobs) {
  auto answer = post(kChat, std::string(kBody) + R"(,"logprobs":true,"top_logprobs":1})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).sampling.top_logprobs, 1);
  engine_.accept(0);
  engine_.token(0, 7, "t7", {5, 1, 2}, -0.5, {{7, -0.5}});
  engine_.end(0, {}, 1);
  const std::vector<Json> lines = lines_of(answer.get());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["logprobs"], parsed(R"([{"token":"t7","logprob":-0.5,"bytes":[116,55],)"
                                         R"("top_logprobs":[{"token":"t7","logprob":-0.5,"bytes":[116,55]}]}])"));
  EXPECT_FALSE(lines[1].contains("logprobs"));
}

TEST_F(OllamaTest, WithoutAPromptTheModelIsLoaded) {
  for (const auto& [path, member] :
       {std::pair(kChat, R"("message":{"role":"assistant","content":""})"), {kGenerate, R"("response":"")"}}) {
    const Answer answer = post(path, R"({"model":"demo:latest","keep_alive":0})").get();
    EXPECT_EQ(shown(answer.json()),
              parsed(R"({"model":"demo:latest",)" + std::string(member) + R"(,"done":true,"done_reason":"load"})"));
  }
  EXPECT_EQ(engine_.submitted(), 0U);
}

TEST_F(OllamaTest, ErrorsBeforeAndInAStream) {
  for (const auto& [body, status, message] :
       {std::tuple(std::string(kBody) + R"(,"options":{"temperature":9}})", 400,
                   "options.temperature is 9; wanted a number in [0, 2]"),
        {std::string(kBody) + R"(,"format":"xml"})", 400,
         "format is 'xml'; wanted \"json\" or an object with a JSON Schema"},
        {std::string(R"({"model":"other"})"), 404, "The model 'other' does not exist; this server has 'demo'"},
        {std::string(R"({"model":"other:latest"})"), 404,
         "The model 'other:latest' does not exist; this server has 'demo'"}}) {
    const Answer answer = post(kChat, body).get();
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.json(), Json({{"error", message}}));
  }
  auto answer = post(kChat, std::string(kBody) + "}");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.deliver(0, FakeEngine::error_of(0, Status(StatusCode::kUnavailable, "the scheduler is gone")));
  const std::vector<Json> lines = lines_of(answer.get());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1], parsed(R"({"error":"the scheduler is gone"})"));
  EXPECT_EQ(get("/api/chat").json()["error"].is_string(), true) << "errors of the server itself too";
}

TEST_F(OllamaTest, TheModelIsListedAndShown) {
  engine_.facts.architecture = "Qwen3MoeForCausalLM";
  engine_.facts.chat_template = "{{ messages }}";
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  engine_.facts.temperature = 0.6;
  engine_.facts.embedding_size = 288;
  context_->names.names = {"demo", "demo:8b"};
  const Json tags = get("/api/tags").json();
  ASSERT_EQ(tags["models"].size(), 2U);
  for (const char* member : {"name", "model"}) {
    EXPECT_EQ(tags["models"][0][member], "demo:latest");
    EXPECT_EQ(tags["models"][1][member], "demo:8b");
  }
  EXPECT_EQ(tags["models"][0]["details"]["family"], "qwen3moe");
  EXPECT_EQ(get("/api/version").json(), Json({{"version", kOllamaApiVersion}}));
  EXPECT_EQ(get("/version").json(), parsed(R"({"version":"test"})"));
  const Json ps = get("/api/ps").json();
  EXPECT_EQ(ps["models"][0]["context_length"], 64);
  engine_.state.ready = false;
  EXPECT_EQ(get("/api/ps").json(), parsed(R"({"models":[]})"));
  const Json shown = post("/api/show", R"({"model":"demo"})").get().json();
  EXPECT_EQ(shown["capabilities"], parsed(R"(["completion","tools"])"));
  EXPECT_EQ(shown["model_info"]["qwen3moe.context_length"], 64);
  EXPECT_EQ(shown["model_info"]["qwen3moe.embedding_length"], 288);
  EXPECT_EQ(shown["template"], "{{ messages }}");
  EXPECT_EQ(shown["parameters"], "temperature                    0.6");
  EXPECT_EQ(post("/api/show", R"({"name":"other"})").get().status, 404);
  EXPECT_EQ(post("/api/show", "{}").get().json(),
            parsed(R"({"error":"model is missing; wanted the name of a model"})"));
}

TEST_F(OllamaTest, WhatWouldChangeTheModelsIsNotServed) {
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy"}) {
    const Answer answer = post(path, R"({"model":"demo"})").get();
    EXPECT_EQ(answer.status, 501) << path;
    EXPECT_NE(answer.json()["error"].get<std::string>().find(std::string(path) + " is not served"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace::api::testing
