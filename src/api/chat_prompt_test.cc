// What a conversation becomes for the template: contents as strings, tools where they are named.
#include "api/chat_prompt.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

Result<ChatPrompt> read(const std::string& body) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  return read_chat_prompt(json, body);
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
  EXPECT_FALSE(read(R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":3})").ok());
}

}  // namespace
}  // namespace millrace::api
