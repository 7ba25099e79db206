// What clients see of the events of an output: deltas and messages, tool calls, reasoning, reasons to finish.
#include "api/chat_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/testing/api_harness.h"
#include "api/tool_grammar.h"

namespace millrace::api::testing {
namespace {

using Kind = wire::OutputEvent::Kind;
using OrderedJson = nlohmann::ordered_json;

const std::vector<wire::OutputEvent> kEvents = {
    {Kind::kReasoning, "so"},       {Kind::kText, "a\"b"},    {Kind::kCallBegin, "f"},
    {Kind::kArguments, "{\"x\": "}, {Kind::kArguments, "1}"}, {Kind::kCallEnd, ""},
    {Kind::kCallBegin, "g"},        {Kind::kArguments, "{}"}, {Kind::kCallEnd, ""},
};

Json object(const std::string& members) { return parsed("{" + members + "}"); }

// The ids, which are random, have their form and are cut out.
Json without_ids(Json object) {
  for (Json& call : object["tool_calls"]) {
    if (!call.contains("id")) continue;
    EXPECT_EQ(call["id"].get<std::string>().size(), 29u);
    EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
    call.erase("id");
  }
  return object;
}

TEST(ChatOutput, AMessageHasAllOfIt) {
  ChatOutput output({.parsed = true, .reasoning_field = true});
  const Json message = without_ids(object(output.message(kEvents)));
  EXPECT_EQ(message, parsed(R"({"content":"a\"b","reasoning_content":"so","tool_calls":[
      {"type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
      {"type":"function","function":{"name":"g","arguments":"{}"}}]})"));
  EXPECT_EQ(output.finish_reason({}), "tool_calls");
  EXPECT_EQ(output.finish_reason({.matched_text = "z"}), "");
  EXPECT_EQ(output.finish_reason({.reason = wire::FinishReason::kLength}), "");

  ChatOutput first({.parsed = true, .one_call = true, .reasoning_field = true, .reasoning_shown = false});
  const Json one = object(first.message(kEvents));
  EXPECT_EQ(one["tool_calls"].size(), 1u);
  EXPECT_TRUE(one["reasoning_content"].is_null());

  ChatOutput calls({.parsed = true});
  const Json alone = object(calls.message({kEvents.begin() + 2, kEvents.end()}));
  EXPECT_TRUE(alone["content"].is_null());
  EXPECT_FALSE(alone.contains("reasoning_content"));
  ChatOutput nothing({.parsed = true});
  EXPECT_EQ(object(nothing.message({})), parsed(R"({"content":""})"));
  EXPECT_EQ(nothing.finish_reason({}), "");
}

TEST(ChatOutput, DeltasNameACallBeforeItsArguments) {
  ChatOutput output({.parsed = true, .reasoning_field = true});
  Json deltas = Json::array();
  for (const auto& event : kEvents) {
    for (const std::string& delta : output.deltas({event}, false)) deltas.push_back(object(delta));
  }
  for (Json& delta : deltas) {
    if (delta.contains("tool_calls")) delta = without_ids(delta);
  }
  EXPECT_EQ(deltas, parsed(R"([{"reasoning_content":"so"},{"content":"a\"b"},
      {"tool_calls":[{"index":0,"type":"function","function":{"name":"f","arguments":""}}]},
      {"tool_calls":[{"index":0,"function":{"arguments":"{\"x\": "}}]},
      {"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},
      {"tool_calls":[{"index":1,"type":"function","function":{"name":"g","arguments":""}}]},
      {"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]}])"));
  EXPECT_EQ(output.finish_reason({}), "tool_calls");
}

TEST(ChatOutput, ReasoningMayWaitUntilItIsComplete) {
  ChatOutput output({.parsed = true, .reasoning_field = true, .reasoning_streamed = false});
  EXPECT_TRUE(output.deltas({{Kind::kReasoning, "a"}}, false).empty());
  EXPECT_TRUE(output.deltas({{Kind::kReasoning, "b"}}, false).empty());
  const auto deltas = output.deltas({{Kind::kText, "c"}}, false);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0], R"("reasoning_content":"ab")");
  ChatOutput cut({.parsed = true, .reasoning_field = true, .reasoning_streamed = false});
  EXPECT_EQ(cut.deltas({{Kind::kReasoning, "a"}}, true).size(), 1u);
}

// A call that the end cut off has no end: what there is of it is shown.
TEST(ChatOutput, ACallThatIsCutOffIsShown) {
  ChatOutput output({.parsed = true});
  const Json message = object(output.message({{Kind::kCallBegin, "f"},
                                              {Kind::kArguments, "{}"},
                                              {Kind::kCallEnd, ""},
                                              {Kind::kCallBegin, "g"},
                                              {Kind::kArguments, R"({"x")"}}));
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "g");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], R"({"x")");
  EXPECT_EQ(output.finish_reason({.reason = wire::FinishReason::kLength}), "");
}

TEST(ToolGrammar, StrictToolsKeepTheirSchemas) {
  const std::string text =
      R"({"tools":[{"function":{"name":"f","strict":true,"parameters":{"properties":{"a":{"$ref":"#"}}}}},)"
      R"({"function":{"name":"g","parameters":{"unevaluatedItems":false}}},{"function":{"name":"h","strict":false}}]})";
  const auto qwen = OrderedJson::parse(guarded_calls(text, wire::ToolDialect::kQwen));
  EXPECT_EQ(qwen["triggers"].dump(), R"(["<tool_call>"])");
  ASSERT_EQ(qwen["structures"].size(), 2u);
  EXPECT_EQ(qwen["structures"][0]["begin"], "<tool_call>\n");
  EXPECT_EQ(
      qwen["structures"][0]["schema"]["properties"].dump(),
      R"({"name":{"const":"f"},"arguments":{"properties":{"a":{"$ref":"#/properties/arguments"}},"type":"object"}})");
  EXPECT_EQ(qwen["structures"][1]["schema"]["properties"].dump(),
            R"({"name":{"enum":["g","h"]},"arguments":{"type":"object"}})");
  EXPECT_FALSE(qwen.contains("document"));
  const std::string schema = R"({"type": "integer"})";
  EXPECT_EQ(OrderedJson::parse(guarded_calls(text, wire::ToolDialect::kQwen, &schema))["document"], schema);
  const auto mistral = OrderedJson::parse(guarded_calls(text, wire::ToolDialect::kMistral));
  ASSERT_EQ(mistral["structures"].size(), 5u);
  EXPECT_EQ(mistral["structures"][0]["schema"]["items"]["anyOf"].size(), 2u);
  EXPECT_EQ(mistral["structures"][2]["begin"], "[TOOL_CALLS]f[ARGS]");
  EXPECT_EQ(mistral["structures"][2]["schema"]["properties"]["a"]["$ref"], "#");
  EXPECT_EQ(mistral["structures"][3]["schema"].dump(), R"({"type":"object"})");
}

TEST(ToolGrammar, ReferencesAndSequencesAreKept) {
  const std::string text =
      R"({"tools":[{"function":{"name":"f","parameters":{"type":"object","properties":{"z":{"$ref":"#/$defs/z"},
      "a":{"$ref":"#"}},"$defs":{"z":{"type":"integer"}}}}},{"function":{"name":"g"}}]})";
  const Json body = parsed(text);
  const auto any = OrderedJson::parse(forced_call_schema(body["tools"], text, {"", false, "arguments"}));
  EXPECT_EQ(any["type"], "array");
  EXPECT_EQ(any["minItems"], 1);
  const auto& f = any["items"]["anyOf"][0];
  EXPECT_EQ(f["properties"].dump(),
            R"({"name":{"const":"f"},"arguments":{"type":"object","properties":)"
            R"({"z":{"$ref":"#/items/anyOf/0/properties/arguments/$defs/z"},)"
            R"("a":{"$ref":"#/items/anyOf/0/properties/arguments"}},"$defs":{"z":{"type":"integer"}}}})");
  EXPECT_EQ(f["required"].dump(), R"(["name","arguments"])");
  EXPECT_EQ(any["items"]["anyOf"][1]["properties"]["arguments"].dump(), R"({"type":"object"})");
  const auto one = OrderedJson::parse(forced_call_schema(body["tools"], text, {"f", true, "parameters"}));
  EXPECT_EQ(one["properties"]["parameters"]["properties"]["a"]["$ref"], "#/properties/parameters");
}

class ToolReplyTest : public ApiHarness {};

constexpr char kAsk[] =
    R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}])";

TEST_F(ToolReplyTest, TheEngineGetsHowToReadTheOutput) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  auto answer = post("/v1/chat/completions", std::string(kAsk) + "}");
  wait_submitted(1);
  const wire::SamplingParams sampling = engine_.request(0).sampling;
  ASSERT_TRUE(sampling.parsing);
  EXPECT_EQ(*sampling.parsing, (wire::OutputParsing{wire::ToolDialect::kQwen, {"f"}, wire::ReasoningDialect::kThink}));
  EXPECT_FALSE(sampling.grammar);
  engine_.accept(0);
  wire::TextDelta delta{.id = ReqId{1}, .usage = {5, 3, 0}, .tokens = {1, 2, 3}};
  delta.usage.reasoning_tokens = 2;
  delta.events = kEvents;
  engine_.deliver(0, delta);
  delta.events.clear();
  delta.tokens.clear();
  delta.finish = wire::Finish{.matched_token = 9};
  engine_.deliver(0, delta);
  const Json body = answer.get().json();
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(body["choices"][0]["matched_stop"], 9);
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
}

TEST_F(ToolReplyTest, TheEndStandsOnTheLastChunkOfText) {
  auto answer = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "a", 1);
  engine_.end(0, {.reason = wire::FinishReason::kLength}, 2, "b");
  const Answer got = answer.get();
  ASSERT_EQ(got.events.size(), 4u);
  const auto choice = [&got](std::size_t i) { return parsed(got.events[i])["choices"][0]; };
  EXPECT_EQ(choice(0)["delta"], parsed(R"({"role":"assistant","content":"","refusal":null})"));
  EXPECT_EQ(choice(1)["delta"], parsed(R"({"content":"a"})"));
  EXPECT_TRUE(choice(1)["finish_reason"].is_null());
  EXPECT_EQ(choice(2)["delta"], parsed(R"({"content":"b"})"));
  EXPECT_EQ(choice(2)["finish_reason"], "length");
  EXPECT_EQ(got.events[3], "[DONE]");
}

TEST_F(ToolReplyTest, TheLastChunkOfAModelThatReasonsHasTheKeyOfReasoning) {
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  for (const bool text : {true, false}) {
    const std::size_t index = engine_.submitted();
    auto answer = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"stream":true})");
    wait_submitted(index + 1);
    engine_.accept(index);
    wire::TextDelta delta{.id = ReqId{index + 1}, .usage = {5, 3, 0}, .tokens = {1, 2}};
    delta.events = {{Kind::kReasoning, "so"}};
    if (text) delta.events.push_back({Kind::kText, "b"});
    delta.finish = wire::Finish{.matched_token = 9};
    engine_.deliver(index, delta);
    const Answer got = answer.get();
    ASSERT_EQ(got.events.size(), text ? 4u : 3u);
    const Json last = parsed(got.events[got.events.size() - 2])["choices"][0];
    EXPECT_EQ(last["delta"],
              text ? parsed(R"({"content":"b","reasoning_content":null})") : parsed(R"({"reasoning_content":"so"})"));
    EXPECT_EQ(last["finish_reason"], "stop");
  }
}

TEST_F(ToolReplyTest, AForcedCallIsAGrammar) {
  auto answer = post("/v1/chat/completions", std::string(kAsk) + R"(,"tool_choice":"required","stream":true})");
  wait_submitted(1);
  const wire::SamplingParams sampling = engine_.request(0).sampling;
  ASSERT_TRUE(sampling.parsing && sampling.grammar);
  EXPECT_EQ(sampling.parsing->tools, wire::ToolDialect::kJson);
  EXPECT_EQ(sampling.grammar->kind, wire::GrammarKind::kJsonSchema);
  EXPECT_EQ(sampling.grammar->field, "tools");
  engine_.accept(0);
  wire::TextDelta delta{.id = ReqId{1}, .usage = {5, 3, 0}, .tokens = {1}};
  delta.events = {kEvents.begin() + 2, kEvents.end()};
  delta.finish = wire::Finish{};
  engine_.deliver(0, delta);
  const Answer got = answer.get();
  ASSERT_EQ(got.events.size(), 7u);  // the opening, five deltas, the last of which has the end, [DONE]
  EXPECT_EQ(parsed(got.events[5])["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ToolReplyTest, OtherEndpointsHaveNoTools) {
  for (const char* body : {R"({"prompt":"a","tools":[{}]})", R"({"prompt":"a","tool_choice":"required"})"}) {
    EXPECT_EQ(post("/v1/completions", body).get().status, 400) << body;
  }
}

}  // namespace
}  // namespace millrace::api::testing
