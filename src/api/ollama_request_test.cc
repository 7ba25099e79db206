// What a request to /api/chat or /api/generate becomes as a chat.
#include "api/ollama_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/ollama_error.h"
#include "api/ollama_options.h"

namespace millrace::api {
namespace {

ModelFacts model() {
  ModelFacts facts;
  facts.name = "demo";
  facts.context_length = 4000;
  facts.has_chat_template = true;
  return facts;
}

Result<OllamaRequest> chat(const std::string& body, const ModelFacts& facts = model()) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  return translate_ollama_chat(json, body, facts);
}

Result<OllamaRequest> generate(const std::string& body, const ModelFacts& facts = model()) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  return translate_ollama_generate(json, body, facts);
}

// One field of the chat, as text; "": it is absent; or the error.
std::string field(const Result<OllamaRequest>& request, const char* key) {
  if (!request.ok()) return request.status().message();
  const auto ordered = nlohmann::ordered_json::parse(request->chat);
  return ordered.contains(key) ? ordered[key].dump() : "";
}

std::string option(const std::string& options, const char* key) {
  return field(chat(R"({"messages":[{"role":"user","content":"hi"}],"options":)" + options + "}"), key);
}

std::string messages(const std::string& list, const ModelFacts& facts = model()) {
  return field(chat(R"({"messages":)" + list + "}", facts), "messages");
}

ModelFacts seeing() {
  ModelFacts facts = model();
  facts.media.pictures.emplace();
  return facts;
}

ModelFacts thinking() {
  ModelFacts facts = model();
  facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  return facts;
}

TEST(OllamaRequest, OptionsHaveTheirFields) {
  const std::string all =
      R"({"temperature":0.5,"top_k":3,"top_p":0.9,"min_p":0.1,"seed":7,"num_predict":9,"stop":["a"],)"
      R"("repeat_penalty":1.1,"repeat_last_n":-1,"presence_penalty":0.2,"frequency_penalty":0.3,"num_ctx":2048})";
  for (const auto& [key, wanted] : {std::pair("temperature", "0.5"),
                                    {"top_k", "3"},
                                    {"top_p", "0.9"},
                                    {"min_p", "0.1"},
                                    {"seed", "7"},
                                    {"max_tokens", "9"},
                                    {"stop", R"(["a"])"},
                                    {"repetition_penalty", "1.1"},
                                    {"presence_penalty", "0.2"},
                                    {"frequency_penalty", "0.3"},
                                    {"num_ctx", ""}}) {
    EXPECT_EQ(option(all, key), wanted) << key;
  }
  EXPECT_EQ(option(R"({"num_predict":-1,"seed":-1})", "max_tokens"), "");
  EXPECT_EQ(option(R"({"num_predict":-2,"seed":-1,"stop":null})", "seed"), "");
  EXPECT_EQ(option("null", "seed"), "");
}

TEST(OllamaRequest, OptionsThatAreNotServedAreRefused) {
  for (const char* neutral : {R"({"typical_p":1.0,"tfs_z":1,"mirostat":0,"penalize_newline":true})",
                              R"({"repeat_last_n":64,"repeat_penalty":1.0})", R"({"mirostat_tau":5,"num_gpu":0})"}) {
    EXPECT_EQ(option(neutral, "temperature"), "") << neutral;
  }
  for (const auto& [options, wanted] :
       {std::pair(R"({"typical_p":0.7})", "options.typical_p is not supported; wanted 1 or nothing"),
        {R"({"tfs_z":0.5})", "options.tfs_z is not supported; wanted 1 or nothing"},
        {R"({"mirostat":2})", "options.mirostat is not supported; wanted 0 or nothing"},
        {R"({"penalize_newline":false})", "options.penalize_newline is not supported; wanted true or nothing"},
        {R"({"repeat_last_n":64,"repeat_penalty":1.1})",
         "options.repeat_last_n is not supported; wanted -1 or nothing"},
        {R"({"repeat_last_n":64,"presence_penalty":1})",
         "options.repeat_last_n is not supported; wanted -1 or nothing"},
        {R"({"temprature":1})", "options.temprature is no known option; perhaps 'temperature'"},
        {"[]", "options is of type array; wanted an object"}}) {
    EXPECT_EQ(option(options, "temperature"), wanted);
  }
}

TEST(OllamaRequest, AnErrorHasTheOptionsName) {
  const Json body = *parse_json(R"({"options":{"num_predict":0,"repeat_penalty":9}})");
  const auto named = [&body](const char* message) { return with_option_name(invalid_argument("{}", message), body); };
  EXPECT_EQ(named("max_tokens is 0; wanted 1").message(), "options.num_predict is 0; wanted 1");
  EXPECT_EQ(named("repetition_penalty is 9; wanted 1").message(), "options.repeat_penalty is 9; wanted 1");
  EXPECT_EQ(named("seed is 1.5; wanted 1").message(), "seed is 1.5; wanted 1") << "it stands at the top of the body";
}

TEST(OllamaRequest, CallsGetIdsAndTheirResultsToo) {
  const std::string call = R"({"function":{"name":"f","arguments":{"b":1,"a":2}}})";
  const std::string other = R"({"function":{"index":1,"name":"g","arguments":{}}})";
  EXPECT_EQ(
      messages(R"([{"role":"user","content":"go"},{"role":"assistant","thinking":"hm","tool_calls":[)" + call + "," +
               other + R"(]},{"role":"tool","content":"2","tool_name":"g"},{"role":"tool","content":"1"}])"),
      R"([{"role":"user","content":"go"},{"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[)"
      R"({"id":"call_000000000","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},)"
      R"({"id":"call_000000001","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"2","name":"g","tool_call_id":"call_000000001"},)"
      R"({"role":"tool","content":"1","tool_call_id":"call_000000000"}])");
  const std::string named = R"([{"role":"assistant","content":"","tool_calls":[{"id":"x","function":{"name":"f"}}]},)"
                            R"({"role":"tool","content":"1","tool_call_id":"x"}])";
  EXPECT_EQ(messages(named),
            R"([{"role":"assistant","content":"","tool_calls":[{"id":"x","type":"function","function":{"name":"f"}}]},)"
            R"({"role":"tool","content":"1","tool_call_id":"x"}])");
  for (const auto& [calls, wanted] :
       {std::pair("{}", "messages[0].tool_calls is of type object; wanted an array"),
        {"[1]", "messages[0].tool_calls[0].function is no object; wanted one with name and arguments"},
        {R"([{"function":{"name":1}}])", "messages[0].tool_calls[0].function.name is no string; wanted one"},
        {R"([{"function":{"name":"f","arguments":"{}"}}])",
         "messages[0].tool_calls[0].function.arguments is of type string; wanted an object"},
        {R"([{"function":{"name":"f","arguments":{}}}])",
         "messages[0].tool_calls is set in the last message; wanted the results of the calls next"}}) {
    EXPECT_EQ(messages(R"([{"role":"assistant","tool_calls":)" + std::string(calls) + "}]"), wanted);
  }
}

TEST(OllamaRequest, PicturesStandBeforeTheText) {
  EXPECT_EQ(
      messages(R"([{"role":"user","content":"What?","images":["aGk=","aG8="]}])", seeing()),
      R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},)"
      R"({"type":"image_url","image_url":{"url":"data:image/png;base64,aG8="}},{"type":"text","text":"What?"}]}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a","images":[]}])"), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a","images":["aGk="]}])"),
            "messages[0].images has 1 entries; wanted none: the model 'demo' takes no pictures");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a","images":[1]}])", seeing()),
            "messages[0].images[0] is of type number; wanted a string of base64");
  EXPECT_EQ(field(generate(R"({"prompt":"a","images":["aGk="],"system":"s"})", seeing()), "messages"),
            R"([{"role":"system","content":"s"},{"role":"user","content":[{"type":"image_url","image_url":)"
            R"({"url":"data:image/png;base64,aGk="}},{"type":"text","text":"a"}]}])");
  const ApiError error{.message = "messages[1].content[0].image_url.url: not base64"};
  EXPECT_EQ(render_ollama_error(error, OllamaEndpoint::kChat), R"({"error":"messages[1].images[0]: not base64"})");
  EXPECT_EQ(render_ollama_error(error, OllamaEndpoint::kGenerate), R"({"error":"images[0]: not base64"})");
  const ApiError late{.message = "stage 'a': messages[0].content[2]: it is truncated"};
  EXPECT_EQ(render_ollama_error(late, OllamaEndpoint::kGenerate),
            R"({"error":"stage 'a': images[2]: it is truncated"})");
  const ApiError close{.message = "-messages[0].content[2]"};
  EXPECT_EQ(render_ollama_error(close, OllamaEndpoint::kChat), R"({"error":"-messages[0].content[2]"})");
  const ApiError other{.message = "a: it has messages[0].content[2]"};
  EXPECT_EQ(render_ollama_error(other, OllamaEndpoint::kGenerate), R"({"error":"a: it has messages[0].content[2]"})");
}

TEST(OllamaRequest, ALastMessageOfTheAssistantIsContinued) {
  const auto body = chat(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  EXPECT_EQ(field(body, "continue_final_message"), "true");
  EXPECT_EQ(option("{}", "continue_final_message"), "");
}

TEST(OllamaRequest, WithoutAPromptNothingIsGenerated) {
  for (const char* body : {"{}", R"({"messages":[]})", R"({"messages":null,"keep_alive":0})"}) {
    EXPECT_TRUE(chat(body)->empty) << body;
  }
  for (const char* body : {"{}", R"({"prompt":""})", R"({"prompt":"","images":[]})"}) {
    EXPECT_TRUE(generate(body)->empty) << body;
  }
  EXPECT_FALSE(generate(R"({"prompt":"a"})")->empty);
}

TEST(OllamaRequest, ARawPromptIsTheTextItself) {
  EXPECT_EQ(generate(R"({"prompt":"a","raw":true})")->text, "a");
  EXPECT_EQ(generate(R"({"prompt":"a","raw":false})")->text, std::nullopt);
  ModelFacts bare = model();
  bare.has_chat_template = false;
  EXPECT_EQ(generate(R"({"prompt":"a"})", bare)->text, "a");
  const auto refused = [](const std::string& more, const ModelFacts& facts) {
    return generate(R"({"prompt":"a",)" + more + "}", facts).status().message();
  };
  EXPECT_EQ(refused(R"("raw":true,"system":"s")", model()), "system is set, and raw is true; wanted no system");
  EXPECT_EQ(refused(R"("raw":true,"images":["a"])", seeing()), "images is set, and raw is true; wanted no images");
  EXPECT_EQ(refused(R"("raw":true,"think":true)", thinking()), "think is set, and raw is true; wanted no think");
  EXPECT_EQ(refused(R"("system":"s")", bare),
            "system is set, and the model 'demo' has no chat template; wanted no system");
}

TEST(OllamaRequest, Think) {
  const auto with = [](const std::string& value, const char* key, const ModelFacts& facts) {
    return field(chat(R"({"messages":[{"role":"user","content":"a"}],"think":)" + value + "}", facts), key);
  };
  EXPECT_EQ(with("true", "enable_thinking", thinking()), "true");
  EXPECT_EQ(with("false", "enable_thinking", thinking()), "false");
  EXPECT_EQ(with("false", "enable_thinking", model()), "false");
  EXPECT_EQ(with("null", "enable_thinking", thinking()), "");
  EXPECT_EQ(with(R"("low")", "enable_thinking", thinking()), "true");
  EXPECT_EQ(with(R"("low")", "reasoning_effort", thinking()), R"("low")");
  EXPECT_EQ(with("true", "enable_thinking", model()),
            "think is true; wanted false or nothing: the model 'demo' does not support thinking");
  EXPECT_EQ(with(R"("much")", "enable_thinking", thinking()),
            R"(think is "much"; wanted true, false, "low", "medium" or "high")");
}

TEST(OllamaRequest, FieldsThatAreNotServedAreRefused) {
  for (const auto& [more, wanted] :
       {std::pair(R"("suffix":"x")", "suffix is not supported; wanted \"\" or nothing"),
        {R"("template":"x")", "template is not supported; wanted \"\" or nothing"},
        {R"("context":[1])", "context is not supported; wanted [] or nothing"},
        {R"("width":64)", "width is not supported; wanted 0 or nothing"},
        {R"("mm_processor_kwargs":{})", "mm_processor_kwargs is not supported; leave it out"},
        {R"("top_logprobs":2)", "top_logprobs is 2 without logprobs: true; wanted both or neither"}}) {
    EXPECT_EQ(generate(R"({"prompt":"a",)" + std::string(more) + "}").status().message(), wanted);
  }
  EXPECT_TRUE(
      generate(R"({"prompt":"a","suffix":"","template":"","context":[],"keep_alive":"5m","images":null})").ok());
}

}  // namespace
}  // namespace millrace::api
