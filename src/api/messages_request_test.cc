// What a request to /v1/messages becomes as a chat.
#include "api/messages_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

ModelFacts model() {
  ModelFacts facts;
  facts.context_length = 4000;
  return facts;
}

Result<ChatBody> translate(const std::string& body, const MediaFacts& facts = {}) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  MediaParts media(facts, MediaDialect::kMessages);
  return translate_messages(json, body, model(), media);
}

// One field of the chat, as text, or the error.
std::string field(const std::string& body, const char* key) {
  const auto chat = translate(body);
  if (!chat.ok()) return chat.status().message();
  const auto ordered = nlohmann::ordered_json::parse(chat->text);
  return ordered.contains(key) ? ordered[key].dump() : "";
}

std::string messages(const std::string& list, const std::string& more = "") {
  return field(R"({"messages":)" + list + more + "}", "messages");
}

constexpr char kHi[] = R"({"messages":[{"role":"user","content":"hi"}])";

TEST(MessagesRequest, TurnsOfOneRoleAreOne) {
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}])"),
            R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                     R"({"role":"assistant","content":"c"},{"role":"user","content":""}])"),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b\nc"},{"role":"user","content":""}])");
}

// With a search of the message's keys at each of its blocks this takes minutes.
TEST(MessagesRequest, ManyBlocksBesideManyKeys) {
  std::string list = R"([{"role":"assistant")";
  for (int i = 0; i < 100'000; ++i) list += fmt::format(R"(,"k{}":0)", i);
  list += R"(,"content":[{"type":"text","text":"a"})";
  for (int i = 0; i < 100'000; ++i) list += R"(,{"type":"redacted_thinking"})";
  list += R"(]},{"role":"user","content":"b"}])";
  EXPECT_EQ(messages(list), R"([{"role":"assistant","content":"a"},{"role":"user","content":"b"}])");
}

TEST(MessagesRequest, TheSystemPromptComesFirst) {
  const std::string hi = R"([{"role":"user","content":"hi"}])";
  EXPECT_EQ(messages(hi, R"(,"system":"s")"), R"([{"role":"system","content":"s"},{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages(hi, R"(,"system":[{"type":"text","text":"s"},{"type":"text","text":"t"}])"),
            R"([{"role":"system","content":"s\nt"},{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages(hi, R"(,"system":[])"), R"([{"role":"user","content":"hi"}])");
  EXPECT_NE(messages(hi, R"(,"system":[{"type":"image"}])").find("system[0].type is 'image'"), std::string::npos);
}

TEST(MessagesRequest, CallsAndTheirResults) {
  const std::string got = messages(
      R"([{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},)"
      R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":"so"},)"
      R"({"type":"tool_use","id":"toolu_1","name":"f","input":{"b":1,"a":2}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"r"}],)"
      R"("is_error":true},{"type":"tool_result","tool_use_id":"toolu_2"},{"type":"text","text":"on"}]}])");
  EXPECT_EQ(
      got,
      R"([{"role":"user","content":"go"},{"role":"assistant","content":"so","reasoning_content":"hm","tool_calls":)"
      R"([{"id":"toolu_1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}]},)"
      R"({"role":"tool","tool_call_id":"toolu_1","content":"r","is_error":true},)"
      R"({"role":"tool","tool_call_id":"toolu_2","content":""},{"role":"user","content":"on"}])");
}

TEST(MessagesRequest, ALastTurnOfTheAssistantIsContinued) {
  const std::string body = R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})";
  EXPECT_EQ(field(body, "continue_final_message"), "true");
  EXPECT_EQ(field(std::string(kHi) + "}", "continue_final_message"), "");
  EXPECT_NE(messages(R"([{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}])")
                .find("messages has a tool_use block in its last turn"),
            std::string::npos);
}

TEST(MessagesRequest, ToolsAndTheirChoice) {
  const std::string tools = std::string(kHi) +
                            R"(,"tools":[{"name":"f","description":"d","cache_control":{"type":"ephemeral"},)"
                            R"("input_schema":{"type":"object","properties":{"z":{},"a":{}}}}],"tool_choice":)";
  EXPECT_EQ(field(tools + "null}", "tools"),
            R"([{"type":"function","function":{"name":"f","description":"d","parameters":)"
            R"({"type":"object","properties":{"z":{},"a":{}}}}}])");
  const auto choice = [&](const std::string& value) { return field(tools + value + "}", "tool_choice"); };
  EXPECT_EQ(choice("null"), "");
  EXPECT_EQ(choice(R"({"type":"auto"})"), R"("auto")");
  EXPECT_EQ(choice(R"({"type":"none"})"), R"("none")");
  EXPECT_EQ(choice(R"({"type":"any"})"), R"("required")");
  EXPECT_EQ(choice(R"({"type":"tool","name":"f"})"), R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(field(tools + R"({"type":"any","disable_parallel_tool_use":true}})", "parallel_tool_calls"), "false");
  EXPECT_EQ(choice(R"({"type":"tool","name":"g"})"), "tool_choice.name is 'g'; wanted the name of one of the tools");
}

// MCP's servers and their clients build such names: mcp__server__tool.
TEST(MessagesRequest, AToolsNameMayBeLong) {
  const auto named = [](std::size_t bytes) {
    return field(std::string(kHi) + R"(,"tools":[{"name":")" + std::string(bytes, 'f') + R"(","input_schema":{}}]})",
                 "tools");
  };
  EXPECT_EQ(named(128),
            R"([{"type":"function","function":{"name":")" + std::string(128, 'f') + R"(","parameters":{}}}])");
  EXPECT_NE(named(129).find("wanted 1 to 128 letters"), std::string::npos);
}

TEST(MessagesRequest, Thinking) {
  const auto thinking = [](const std::string& value, const std::string& more = "") {
    return field(std::string(kHi) + R"(,"max_tokens":3000,"thinking":)" + value + more + "}", "enable_thinking");
  };
  EXPECT_EQ(thinking("null"), "");
  EXPECT_EQ(thinking(R"({"type":"adaptive"})"), "true");
  EXPECT_EQ(thinking(R"({"type":"disabled"})"), "false");
  EXPECT_EQ(thinking(R"({"type":"enabled","budget_tokens":2999})"), "true");
  EXPECT_NE(thinking(R"({"type":"enabled","budget_tokens":2998})").find("thinking.budget_tokens is 2998"),
            std::string::npos);
  EXPECT_NE(thinking(R"({"type":"enabled","budget_tokens":1023})").find("budget_tokens is 1023"), std::string::npos);
  const std::string forced = R"(,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"any"})";
  EXPECT_EQ(thinking(R"({"type":"adaptive"})", forced), "");
  EXPECT_NE(thinking(R"({"type":"enabled"})", forced).find("tool_choice forces a call"), std::string::npos);
}

TEST(MessagesRequest, TheBudgetIsThatOfMaxTokensAndTheContext) {
  const auto budget = [](int64_t max_tokens, int64_t tokens) {
    return translate(std::string(kHi) + R"(,"max_tokens":)" + std::to_string(max_tokens) +
                     R"(,"thinking":{"type":"enabled","budget_tokens":)" + std::to_string(tokens) + "}}")
        .ok();
  };
  EXPECT_TRUE(budget(32000, 31999));
  EXPECT_TRUE(budget(32000, 4000));
  EXPECT_FALSE(budget(32000, 3999));
  EXPECT_TRUE(translate(std::string(kHi) + R"(,"thinking":{"type":"enabled","budget_tokens":1024}})").ok());
}

TEST(MessagesRequest, WhatIsNotServedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools":[{"type":"web_search_20250305","name":"web_search"}])", "tools[0].type is 'web_search_20250305'"},
      {R"("tools":[{"name":"a b","input_schema":{}}])", "tools[0].name is 'a b'"},
      {R"("tools":[{"name":"f"}])", "tools[0].input_schema is missing"},
      {R"("tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}])", "tools[1].name is 'f'"},
      {R"("tools":[{"name":"f","input_schema":{},"defer_loading":true}])", "tools[0]: defer_loading is not supported"},
      {R"("tool_choice":{"type":"any"})", "tool_choice.type is 'any' without tools"},
      {R"("mcp_servers":[{}])", "mcp_servers is not supported"},
      {R"("stop":["z"])", "stop is not supported; wanted [] or nothing"},
      {R"("max_completion_tokens":5)", "max_completion_tokens is not supported"},
      {R"("vllm_xargs":{})", "vllm_xargs is not supported"},
      {R"("images_config":{})", "images_config is not supported"},
      {R"("container":"c")", "container is not supported"},
      {R"("thinking":{"type":"between_tools"})", "thinking.type is 'between_tools'"},
      {R"("output_config":{"effort":"huge"})", "output_config.effort is 'huge'"},
      {R"("output_config":{"task_budget":{}})", "output_config: task_budget is not supported"},
  };
  for (const auto& [more, message] : cases) {
    const auto got = translate(std::string(kHi) + "," + more + "}");
    ASSERT_FALSE(got.ok()) << more;
    EXPECT_NE(got.status().message().find(message), std::string::npos) << got.status().message();
  }
  EXPECT_NE(messages(R"([{"role":"tool","content":"x"}])").find("messages[0].role is 'tool'"), std::string::npos);
  EXPECT_NE(
      messages(R"([{"role":"user","content":[{"type":"image"}]}])").find("messages[0].content[0].type is 'image'"),
      std::string::npos);
  EXPECT_NE(messages(R"([{"role":"assistant","content":[{"type":"server_tool_use"}]}])").find("is 'server_tool_use'"),
            std::string::npos);
}

// A GIF of one pixel.
constexpr char kPixel[] = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";

std::string picture_messages(const std::string& list) {
  MediaFacts facts;
  facts.pictures.emplace();
  const auto chat = translate(R"({"messages":)" + list + "}", facts);
  return chat.ok() ? Json::parse(chat->text)["messages"].dump() : chat.status().message();
}

std::string image(const std::string& more = "") {
  return R"({"type":"image","source":{"type":"base64","media_type":"image/gif","data":")" + std::string(kPixel) +
         "\"}" + more + "}";
}

TEST(MessagesRequest, PicturesStandBetweenTexts) {
  EXPECT_EQ(picture_messages(R"([{"role":"user","content":"a"},{"role":"user","content":[)" + image() +
                             R"(,{"type":"text","text":"b"},{"type":"text","text":"c"},)" + image() + "]}]"),
            R"([{"content":[{"text":"a","type":"text"},{"type":"image"},{"text":"b\nc","type":"text"},)"
            R"({"type":"image"}],"role":"user"}])");
  EXPECT_EQ(picture_messages(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[)" +
                             image() + R"(]},{"type":"text","text":"b"}]}])"),
            R"([{"content":[{"type":"image"}],"role":"tool","tool_call_id":"t"},{"content":"b","role":"user"}])");
  const std::pair<std::string, const char*> cases[] = {
      {image(R"(,"transformations":{"a":1})"), "[0]: transformations is not supported"},
      {R"({"type":"image"})", "[0].source is missing"},
      {R"({"type":"image","source":{"type":"base64"}})", "[0].source.data is no string"},
      {R"({"type":"image","source":{"type":"base64","data":"a"}})", "[0].source.data: its base64 has 1 characters"},
      {R"({"type":"image","source":{"type":"file","file_id":"f"}})", "[0].source.type is 'file'; wanted base64 or url"},
      {R"({"type":"image","source":{"type":"url","url":"http://a"}})", "[0].source.url begins with 'http://a'"},
      {R"({"type":"document"})", "[0].type is 'document'; wanted text, tool_result or image"},
  };
  for (const auto& [block, message] : cases) {
    const std::string got = picture_messages(R"([{"role":"user","content":[)" + block + "]}]");
    EXPECT_NE(got.find(std::string("messages[0].content") + message), std::string::npos) << got;
  }
  EXPECT_EQ(messages(R"([{"role":"user","content":[)" + image() + "]}]"),
            "messages[0].content[0].type is 'image'; wanted text or tool_result: this model takes text only");
}

}  // namespace
}  // namespace millrace::api
