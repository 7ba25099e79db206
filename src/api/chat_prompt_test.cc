// What a conversation becomes for the template: contents as strings, tools where they are named.
#include "api/chat_prompt.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "api/fields.h"

namespace millrace::api {
namespace {

Result<ChatPrompt> read(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  const MediaFacts text_only;
  MediaParts media(text_only);
  return read_chat_prompt(json, body, media);
}

// The contents, as a template sees them.
std::string contents(const std::string& messages) {
  const auto chat = ChatTemplate::parse("{% for m in messages %}[{{ m['content'] }}]{% endfor %}", "test");
  const auto prompt = read(R"({"messages":)" + messages + "}");
  if (!prompt.ok()) return prompt.status().message();
  const auto rendered = chat->render(prompt->messages, {});
  if (!rendered.ok()) return rendered.status().message();
  std::string out;
  for (const Segment& segment : *rendered) out += segment.text;
  return out;
}

TEST(ChatPrompt, AnAssistantWithoutContentHasAnEmptyText) {
  EXPECT_EQ(contents(R"([{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[]}])"),
            "[hi][]");
  EXPECT_EQ(contents(R"([{"role":"assistant"},{"role":"user","content":"hi"}])"), "[][hi]");
  EXPECT_NE(contents(R"([{"role":"user","content":null}])").find("messages[0].content is missing"), std::string::npos);
}

TEST(ChatPrompt, ARefusalIsTheAssistantsText) {
  EXPECT_EQ(
      contents(R"([{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"no"}]}])"),
      "[a\nno]");
  EXPECT_EQ(contents(R"([{"role":"assistant","content":null,"refusal":"no"},{"role":"user","content":"hi"}])"),
            "[no][hi]");
  EXPECT_EQ(contents(R"([{"role":"assistant","content":"a","refusal":null}])"), "[a]");
  EXPECT_NE(contents(R"([{"role":"assistant","content":[{"type":"refusal"}]}])").find("messages[0].content[0].refusal"),
            std::string::npos);
  EXPECT_NE(contents(R"([{"role":"user","content":[{"type":"refusal","refusal":"no"}]}])").find("type is 'refusal'"),
            std::string::npos);
}

TEST(ChatPrompt, ADeveloperIsTheSystemUnlessTheTemplateNamesIt) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/jinja/chat.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  const auto rendered = [](const std::string& source) {
    const auto chat = ChatTemplate::parse(source);
    const std::string body =
        R"({"messages":[{"role":"developer","content":"Rhyme."},{"content":[{"type":"text","text":"hi"}],"role":"user"}]})";
    const MediaFacts text_only;
    MediaParts media(text_only);
    const auto prompt = read_chat_prompt(*parse_json(body), body, media, find_tool_history_form(*chat));
    const auto segments = chat->render(prompt->messages, {});
    std::string out;
    for (const Segment& segment : *segments) out += segment.text;
    return out;
  };
  EXPECT_TRUE(rendered(golden["templates"]["qwen3"]["source"].get<std::string>())
                  .starts_with("<|im_start|>system\nRhyme.<|im_end|>\n<|im_start|>user\nhi<|im_end|>"));
  constexpr const char* kRoles = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}";
  EXPECT_EQ(rendered(kRoles), "[system Rhyme.][user hi]");
  EXPECT_EQ(rendered(std::string("{% set known = 'developer' %}") + kRoles), "[developer Rhyme.][user hi]");
}

TEST(ChatPrompt, PartsOfAMessageAreJoinedByNewlines) {
  EXPECT_EQ(contents(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
            "[a\nb]");
  EXPECT_EQ(contents(R"([{"role":"user","content":[{"type":"text","text":"a"}]}])"), "[a]");
}

TEST(ChatPrompt, ToolsReachTheTemplate) {
  const auto chat = ChatTemplate::parse("{% for t in tools %}{{ t.function.name }}{% endfor %}", "test");
  const auto prompt = read(R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"add"}}]})");
  ASSERT_TRUE(prompt.ok());
  const auto rendered = chat->render(prompt->messages, {.tools = prompt->tools});
  ASSERT_TRUE(rendered.ok());
  ASSERT_EQ(rendered->size(), 1u);
  EXPECT_EQ(rendered->front().text, "add");
  EXPECT_FALSE(read(R"({"messages":[{"role":"user","content":"x"}],"tools":{}})").ok());
}

// The calls of a history, as a template sees them.
std::string history(const std::string& messages, const ToolHistoryForm& form) {
  const auto chat = ChatTemplate::parse(
      "{% for m in messages %}{{ m.content }};{% for c in m.tool_calls or [] %}{{ c.id }},{{ c.function.name }},"
      "{{ c.function.arguments is string }},{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id or '' }}"
      "{% endfor %}",
      "test");
  const std::string body = R"({"messages":)" + messages + "}";
  const MediaFacts text_only;
  MediaParts media(text_only);
  const auto prompt = read_chat_prompt(*parse_json(body), body, media, form);
  if (!prompt.ok()) return prompt.status().message();
  const auto rendered = chat->render(prompt->messages, {});
  if (!rendered.ok()) return rendered.status().message();
  std::string out;
  for (const Segment& segment : *rendered) out += segment.text;
  return out;
}

// A body's limit of values holds for what stands in its strings too, where that is parsed.
TEST(ChatPrompt, ArgumentsOfTheHistoryHaveTheLimitsOfABody) {
  std::string values = "[";
  for (std::size_t i = 0; i < kMaxBodyContainers / 2; ++i) values += "{},";
  const std::string call = R"({"id":"c","function":{"name":"f","arguments":"{\"a\":)" + values + R"({}]}"}})";
  const auto of_calls = [&](const std::string& calls) {
    return history(R"([{"role":"assistant","tool_calls":[)" + calls + "]}]", {});
  };
  EXPECT_TRUE(of_calls(call).starts_with(";c,f,False,"));
  EXPECT_EQ(
      of_calls(call + "," + call),
      "messages[0].tool_calls[1].function.arguments, with those before it, has 16390 arrays and objects; wanted at "
      "most 16384");
  EXPECT_TRUE(history(R"([{"role":"assistant","tool_calls":[)" + call + "," + call + "]}]", {.arguments_as_text = true})
                  .starts_with(";c,f,True,"));
}

TEST(ChatPrompt, CallsOfTheHistoryGetTheFormThatTheTemplateWants) {
  const std::string called =
      R"([{"role":"assistant","content":null,"tool_calls":[{"id":"call_0123456789abcdef","type":"function",)"
      R"("function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2]}"}}]},)"
      R"({"role":"tool","tool_call_id":"call_0123456789abcdef","content":"r"}])";
  EXPECT_EQ(history(called, {}), R"(;call_0123456789abcdef,f,False,{"b": 1, "a": [2]}r;call_0123456789abcdef)");
  EXPECT_EQ(history(called, {.arguments_as_text = true, .null_content = true}),
            R"(None;call_0123456789abcdef,f,True,"{\"b\": 1, \"a\": [2]}"r;call_0123456789abcdef)");
  EXPECT_EQ(history(called, {.short_ids = true}), R"(;789abcdef,f,False,{"b": 1, "a": [2]}r;789abcdef)");
  // Floats as Python writes them, which is what tojson does with an object: the powers of ten on both sides of 1e16.
  const std::string numbers =
      R"([{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f","arguments":)"
      R"({"a":[1e15,-1234567890123456.5,1e16,0.0001,1e-5,0.5],"b":{"\u00e9\n":1e0},"c":10,"d":null}}}]}])";
  EXPECT_EQ(history(numbers, {.arguments_as_text = true}),
            R"(;x,f,True,"{\"a\":[1000000000000000.0,-1234567890123456.5,1e+16,0.0001,1e-05,0.5],)"
            R"(\"b\":{\"é\\n\":1.0},\"c\":10,\"d\":null}")");
  EXPECT_EQ(history(numbers, {}),
            R"(;x,f,False,{"a": [1000000000000000.0, -1234567890123456.5, 1e+16, 0.0001, 1e-05, 0.5], )"
            R"("b": {"é\n": 1.0}, "c": 10, "d": null})");
  // What is no JSON object stays as it is: a call that was cut off.
  EXPECT_EQ(
      history(R"([{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"a"}}]}])", {}),
      R"(;x,f,True,"{\"a")");
  EXPECT_EQ(history(R"([{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f"}}]}])", {}),
            ";x,f,False,{}");
  EXPECT_EQ(history(R"([{"role":"assistant","tool_calls":{}}])", {}),
            "messages[0].tool_calls is of type object; wanted an array");
  EXPECT_EQ(history(R"([{"role":"assistant","tool_calls":[{"function":{"name":5}}]}])", {}),
            "messages[0].tool_calls[0].function.name is missing; wanted a string");
}

TEST(ChatPrompt, TheReasoningEffortIsAVariableOfTheTemplate) {
  const auto chat = ChatTemplate::parse("{{ reasoning_effort }} {{ enable_thinking }}", "test");
  const auto rendered = [&](const std::string& more) {
    const auto prompt = read(R"({"messages":[{"role":"user","content":"x"}])" + more + "}");
    EXPECT_TRUE(prompt.ok()) << more;
    std::string text;
    const auto segments = chat->render(prompt->messages, {.extra = prompt->template_kwargs});
    for (const auto& segment : *segments) text += segment.text;
    return text;
  };
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"low")"), "low ");
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":1})"), "low 1");
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"})"), "high ");
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"none")"), "none False");
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"none","enable_thinking":true)"), "none True");
  EXPECT_EQ(rendered(R"(,"reasoning_effort":"none","chat_template_kwargs":{"reasoning_effort":"high"})"), "high ");
  for (const char* effort : {"3", R"("more")", R"("")"}) {
    const auto prompt =
        read(R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":)" + std::string(effort) + "}");
    EXPECT_TRUE(prompt.status().message().starts_with("reasoning_effort is ")) << prompt.status().message();
  }
}

}  // namespace
}  // namespace millrace::api
