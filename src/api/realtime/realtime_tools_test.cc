// Calls of functions in /v1/realtime, in front of a fake engine.
#include <gtest/gtest.h>

#include "api/testing/realtime_harness.h"

namespace millrace::api {
namespace {

using testing::kCreate;
using testing::parsed;
using testing::RealtimeClient;
using Kind = wire::OutputEvent::Kind;

constexpr const char* kTools = R"([{"type":"function","name":"weather","description":"Of a city",
    "parameters":{"type":"object","properties":{"zone":{"type":"string"},"city":{"type":"string"}}}}])";

class RealtimeToolsTest : public testing::RealtimeHarness {
 protected:
  void SetUp() override {
    RealtimeHarness::SetUp();
    engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  }
  std::unique_ptr<RealtimeClient> open_with_tools(bool beta = false) {
    auto session = open(beta);
    session->send(std::string(R"({"type":"session.update","session":{")") +
                  (beta ? "modalities" : "output_modalities") + R"(":["text"],"tools":)" + kTools + "}}");
    updated_ = session->expect("session.updated")["session"];
    return session;
  }
  void events(std::size_t index, std::vector<wire::OutputEvent> found, bool last = false) {
    wire::TextDelta delta{.id = ReqId{index + 1}, .usage = {5, 3, 2}, .events = std::move(found)};
    if (last) delta.finish = wire::Finish{.reason = wire::FinishReason::kStop};
    engine_.deliver(index, delta);
  }
  Json updated_;
};

TEST_F(RealtimeToolsTest, ACallIsAnItemAndItsOutputGoesOn) {
  auto session = open_with_tools();
  EXPECT_EQ(updated_["tools"], parsed(kTools));
  EXPECT_EQ(updated_["tool_choice"], "auto");
  session->user("How is it?");
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(1);
  (void)chat(0);
  ASSERT_TRUE(request_.sampling.parsing.has_value());
  EXPECT_EQ(request_.sampling.parsing->tools, wire::ToolDialect::kQwen);
  engine_.accept(0);
  events(0, {{Kind::kText, "Let me see."}});
  const Json message = session->expect("response.output_item.added");
  EXPECT_EQ(message["item"]["type"], "message");
  session->expect("conversation.item.added");
  session->expect("response.content_part.added");
  EXPECT_EQ(session->expect("response.output_text.delta")["delta"], "Let me see.");
  events(0, {{Kind::kCallBegin, "weather"}, {Kind::kArguments, R"({"city":)"}});
  EXPECT_EQ(session->expect("response.output_text.done")["text"], "Let me see.");
  session->expect("response.content_part.done");
  EXPECT_EQ(session->expect("response.output_item.done")["item"]["status"], "completed");
  session->expect("conversation.item.done");
  const Json call = session->expect("response.output_item.added");
  EXPECT_EQ(call["output_index"], 1);
  EXPECT_EQ(call["item"]["type"], "function_call");
  EXPECT_EQ(call["item"]["name"], "weather");
  EXPECT_EQ(call["item"]["arguments"], "");
  EXPECT_EQ(session->expect("conversation.item.added")["previous_item_id"], message["item"]["id"]);
  const Json delta = session->expect("response.function_call_arguments.delta");
  EXPECT_EQ(delta["delta"], R"({"city":)");
  EXPECT_EQ(delta["item_id"], call["item"]["id"]);
  EXPECT_EQ(delta["call_id"], call["item"]["call_id"]);
  events(0, {{Kind::kArguments, R"("rome"})"}, {Kind::kCallEnd, ""}, {Kind::kText, "\n"}}, true);
  session->expect("response.function_call_arguments.delta");
  const Json done = session->expect("response.function_call_arguments.done");
  EXPECT_EQ(done["arguments"], R"({"city":"rome"})");
  EXPECT_EQ(done["name"], "weather");
  EXPECT_EQ(session->expect("response.output_item.done")["item"]["arguments"], R"({"city":"rome"})");
  session->expect("conversation.item.done");
  const Json response = session->expect("response.done")["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 2u);
  EXPECT_EQ(response["output"][1]["type"], "function_call");
  // What the function gave, and the next answer.
  const std::string id = call["item"]["call_id"];
  session->send(R"({"type":"conversation.item.create","item":{"type":"function_call_output","call_id":")" + id +
                R"(","output":"sunny"}})");
  EXPECT_EQ(session->expect("conversation.item.added")["item"]["output"], "sunny");
  session->expect("conversation.item.done");
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(2);
  const Json history = messages(1);
  ASSERT_EQ(history.size(), 3u) << history.dump();
  EXPECT_EQ(history[1]["content"], "Let me see.");
  EXPECT_EQ(history[1]["tool_calls"][0]["id"], id);
  EXPECT_EQ(history[1]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(history[2], parsed(R"({"role":"tool","tool_call_id":")" + id + R"(","content":"sunny"})"));
}

TEST_F(RealtimeToolsTest, AnAnswerMayBeCallsAlone) {
  auto session = open_with_tools();
  session->user("How is it?");
  session->send(kCreate);
  const Json response = session->expect("response.created")["response"];
  wait_submitted(1);
  engine_.accept(0);
  events(0,
         {{Kind::kCallBegin, "weather"},
          {Kind::kArguments, "{}"},
          {Kind::kCallEnd, ""},
          {Kind::kText, "\n"},
          {Kind::kCallBegin, "weather"},
          {Kind::kArguments, "{}"},
          {Kind::kCallEnd, ""}},
         true);
  std::vector<std::string> types = session->types(12);
  const std::vector<std::string> one = {"response.output_item.added",
                                        "conversation.item.added",
                                        "response.function_call_arguments.delta",
                                        "response.function_call_arguments.done",
                                        "response.output_item.done",
                                        "conversation.item.done"};
  std::vector<std::string> wanted = one;
  wanted.insert(wanted.end(), one.begin(), one.end());
  EXPECT_EQ(types, wanted);
  const Json output = session->expect("response.done")["response"]["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_NE(output[0]["call_id"], output[1]["call_id"]);
  session->send(R"({"type":"conversation.item.retrieve","item_id":")" + output[1]["id"].get<std::string>() + "\"}");
  EXPECT_EQ(session->expect("conversation.item.retrieved")["item"]["name"], "weather");
  // One after the other in the history: two calls of one turn.
  session->send(R"({"type":"response.create","response":{"tool_choice":"none"}})");
  session->expect("response.created");
  wait_submitted(2);
  EXPECT_EQ(messages(1)[1]["tool_calls"].size(), 2u);
  EXPECT_FALSE(request_.sampling.parsing.has_value());
}

TEST_F(RealtimeToolsTest, ACallMayBeForced) {
  auto session = open_with_tools();
  session->user("How is it?");
  session->send(R"({"type":"response.create","response":{"tool_choice":{"type":"function","name":"weather"}}})");
  session->expect("response.created");
  wait_submitted(1);
  EXPECT_TRUE(engine_.request(0).sampling.grammar.has_value());
}

TEST_F(RealtimeToolsTest, TheClientMayBringACallOfBefore) {
  auto session = open_with_tools(true);
  session->send(R"({"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":
      "input_text","text":"How is it?"}]}})");
  session->expect("conversation.item.created");
  session->send(R"({"type":"conversation.item.create","item":{"type":"function_call","call_id":"c1","name":"weather",
      "arguments":"{\"city\":\"rome\"}"}})");
  EXPECT_EQ(session->expect("conversation.item.created")["item"]["call_id"], "c1");
  session->send(kCreate);
  session->expect("response.created");
  wait_submitted(1);
  EXPECT_EQ(messages(0)[1]["tool_calls"][0]["id"], "c1");
}

TEST_F(RealtimeToolsTest, WhatIsNotServedIsRefusedByName) {
  auto session = open();
  const auto refused = [&](const std::string& fields) {
    return session->refused(R"({"type":"session.update","session":{)" + fields + "}}")["message"].get<std::string>();
  };
  const std::string tools = std::string(R"("tools":)") + kTools;
  EXPECT_TRUE(refused(tools).starts_with("session.tools is set, and answers are spoken")) << refused(tools);
  const std::string text = R"("output_modalities":["text"],)";
  EXPECT_TRUE(refused(text + R"("tools":[{"type":"mcp"}])").starts_with("session.tools[0].type is 'mcp'"));
  EXPECT_TRUE(refused(text + R"("tools":[{"type":"function","name":"a b"}])").starts_with("session.tools[0].name"));
  EXPECT_TRUE(refused(text + R"("tools":7)").starts_with("session.tools is of type"));
  EXPECT_TRUE(refused(text + R"("tool_choice":"required")").starts_with("session.tool_choice"));
  EXPECT_TRUE(refused(text + R"("tool_choice":"sometimes")").starts_with("session.tool_choice"));
  session->send(R"({"type":"session.update","session":{}})");
  EXPECT_EQ(session->expect("session.updated")["session"], created_);
  const auto item = [&](const std::string& fields) {
    return session->refused(R"({"type":"conversation.item.create","item":{)" + fields + "}}")["message"]
        .get<std::string>();
  };
  EXPECT_TRUE(item(R"("type":"function_call_output","output":"x")").starts_with("item.call_id"));
  EXPECT_TRUE(item(R"("type":"function_call_output","call_id":"c","output":7)").starts_with("item.output"));
  EXPECT_TRUE(item(R"("type":"function_call","call_id":"c","name":"a b","arguments":"")").starts_with("item.name"));
  EXPECT_TRUE(item(R"("type":"mcp_call")").starts_with("item.type is 'mcp_call'"));
}

}  // namespace
}  // namespace millrace::api
