// What Anthropic's clients get for what the engine reports, over real sockets. Shapes are those of Anthropic's API
// reference.
#include <gtest/gtest.h>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using Kind = wire::OutputEvent::Kind;
using wire::FinishReason;

constexpr char kPath[] = "/v1/messages";
constexpr char kBody[] = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":7)";

class MessagesTest : public ApiHarness {
 protected:
  // The blocks of a stream, put together as a client does.
  static Json blocks_of(const Answer& answer) {
    Json blocks = Json::array();
    for (const std::string& event : answer.events) {
      const Json json = parsed(event);
      if (json["type"] == "content_block_start") {
        EXPECT_EQ(json["index"], blocks.size());
        blocks.push_back(json["content_block"]);
      } else if (json["type"] == "content_block_delta") {
        for (const auto& [from, to] :
             {std::pair("text", "text"), {"thinking", "thinking"}, {"partial_json", "partial_json"}}) {
          if (!json["delta"].contains(from)) continue;
          blocks.back()[to] = blocks.back().value(to, "") + json["delta"][from].get<std::string>();
        }
      } else if (json["type"] == "content_block_stop" && blocks.back().contains("partial_json")) {
        blocks.back()["input"] = parsed(blocks.back()["partial_json"].get<std::string>());
        blocks.back().erase("partial_json");
      }
    }
    return blocks;
  }
  static Json without_ids(Json blocks) {
    for (Json& block : blocks) {
      if (block["type"] != "tool_use") continue;
      EXPECT_TRUE(block["id"].get<std::string>().starts_with("toolu_"));
      block.erase("id");
    }
    return blocks;
  }
  // The types of the events, without those of deltas in a row.
  static std::string types(const Answer& answer) {
    std::string out, last;
    for (const std::string& event : answer.events) {
      const Json json = parsed(event);
      std::string type = json["type"];
      if (type == "content_block_delta") type = json["delta"]["type"];
      if (type != last) out += type + " ";
      last = type;
    }
    return out;
  }
};

TEST_F(MessagesTest, Complete) {
  auto answer = post(kPath, std::string(kBody) + R"(,"stop_sequences":["X"],"top_k":3})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, 7);
  EXPECT_EQ(engine_.request(0).sampling.stop, std::vector<std::string>{"X"});
  EXPECT_EQ(engine_.request(0).sampling.top_k, 3);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_text = "X"}, 3, "lo");
  const Json body = answer.get().json();
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(body["type"], "message");
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_EQ(body["content"], parsed(R"([{"type":"text","citations":[],"text":"Hello"}])"));
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "X");
  EXPECT_EQ(body["usage"], parsed(R"({"input_tokens":3,"cache_creation_input_tokens":0,)"
                                  R"("cache_read_input_tokens":2,"output_tokens":3,)"
                                  R"("output_tokens_details":{"thinking_tokens":0},"cache_creation":null,)"
                                  R"("inference_geo":null,"server_tool_use":null,"service_tier":null})"));
  EXPECT_TRUE(body.contains("container") && body["container"].is_null());
}

TEST_F(MessagesTest, Streamed) {
  auto answer = post(kPath, std::string(kBody) + R"(,"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.text(0, "lo", 2);
  engine_.end(0, {.reason = FinishReason::kLength}, 3);
  const Answer got = answer.get();
  EXPECT_EQ(types(got),
            "message_start ping content_block_start text_delta content_block_stop message_delta message_stop ");
  const Json delta = parsed(got.events[got.events.size() - 2]);
  EXPECT_EQ(delta["delta"],
            parsed(R"({"stop_reason":"max_tokens","stop_sequence":null,"stop_details":null,"container":null})"));
  EXPECT_EQ(delta["usage"]["output_tokens"], 3);
}

TEST_F(MessagesTest, BlocksOfAStreamAreThoseOfAnAnswer) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  const std::string body = std::string(kBody) + R"(,"tools":[{"name":"f","input_schema":{}}])";
  const Json expected =
      parsed(R"([{"type":"thinking","thinking":"hm","signature":""},{"type":"text","citations":[],"text":"so"},)"
             R"({"type":"tool_use","caller":{"type":"direct"},"name":"f","input":{"a":1}},)"
             R"({"type":"tool_use","caller":{"type":"direct"},"name":"f","input":{}},)"
             R"({"type":"text","citations":[],"text":"on"}])");
  for (const bool one_call : {false, true}) {
    Json wanted = expected;
    if (one_call) wanted.erase(3);
    const std::string more = one_call ? R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})" : "";
    for (const bool streamed : {false, true}) {
      const std::size_t index = engine_.submitted();
      auto answer = post(kPath, body + more + (streamed ? R"(,"stream":true})" : "}"));
      wait_submitted(index + 1);
      deliver_two_calls(index);
      const Answer got = answer.get();
      EXPECT_EQ(without_ids(streamed ? blocks_of(got) : got.json()["content"]), wanted);
      const std::string all = streamed ? got.events[got.events.size() - 2] : got.body;
      EXPECT_NE(all.find(R"("stop_reason":"tool_use")"), std::string::npos);
    }
  }
}

TEST_F(MessagesTest, ThinkingIsOmittedWhereAsked) {
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  auto answer = post(kPath, std::string(kBody) + R"(,"thinking":{"type":"adaptive","display":"omitted"}})");
  wait_submitted(1);
  engine_.accept(0);
  events(0, {{Kind::kReasoning, "hm"}, {Kind::kText, "so"}});
  engine_.end(0, {}, 3);
  EXPECT_EQ(answer.get().json()["content"],
            parsed(R"([{"type":"thinking","thinking":"","signature":""},{"type":"text","citations":[],"text":"so"}])"));
}

TEST_F(MessagesTest, ErrorsHaveTheFormOfTheFamily) {
  const Answer bad = post(kPath, R"({"messages":[],"max_tokens":7})").get();
  EXPECT_EQ(bad.status, 400);
  const Json json = bad.json();
  EXPECT_EQ(json["type"], "error");
  EXPECT_EQ(json["error"],
            parsed(R"({"type":"invalid_request_error","message":"messages has 0 entries; wanted 1 to 4096"})"));
  EXPECT_TRUE(json["request_id"].get<std::string>().starts_with("req-"));
  engine_.refuse = [](std::size_t index) {
    return index == 0 ? Status(StatusCode::kTooLarge, "This model's maximum is 9 tokens")
                      : Status(StatusCode::kUnavailable, "loading");
  };
  const Json large = post(kPath, std::string(kBody) + "}").get().json();
  EXPECT_EQ(large["error"]["message"], "prompt is too long: This model's maximum is 9 tokens");
  const Answer loading = post(kPath, std::string(kBody) + R"(,"stream":true})").get();
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(loading.json()["error"]["type"], "overloaded_error");
}

TEST_F(MessagesTest, AnErrorInAStreamIsItsLastEvent) {
  auto answer = post(kPath, std::string(kBody) + R"(,"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "a", 1);
  engine_.deliver(0, FakeEngine::error_of(0, Status(StatusCode::kUnavailable, "the scheduler is gone")));
  const Answer got = answer.get();
  EXPECT_EQ(types(got), "message_start ping content_block_start text_delta error ");
  EXPECT_EQ(parsed(got.events.back())["error"],
            parsed(R"({"type":"overloaded_error","message":"the scheduler is gone"})"));
}

TEST_F(MessagesTest, TheServersErrorsHaveItToo) {
  const Answer wrong_method = get(kPath);
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.json()["error"]["type"], "invalid_request_error");
  EXPECT_FALSE(wrong_method.json()["request_id"].get<std::string>().empty());
  EXPECT_EQ(get("/v1/messages/nothing").body.substr(0, 3), "404");  // no path of the family
}

// Every value of a body, one at a time, by values of other types.
TEST_F(MessagesTest, NoBodyIsAnInternalError) {
  const Json body = parsed(
      R"({"max_tokens":9,"temperature":1,"top_p":1,"top_k":2,"stream":false,"stop_sequences":["z"],)"
      R"("system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"metadata":{"user_id":"u"},)"
      R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}}],)"
      R"("tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true},)"
      R"("thinking":{"type":"adaptive","display":"omitted"},"output_config":{"effort":"low"},)"
      R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},)"
      R"({"type":"tool_use","id":"i","name":"f","input":{"a":"b"}}]},{"role":"user","content":[{"type":"tool_result",)"
      R"("tool_use_id":"i","is_error":true,"content":[{"type":"text","text":"r"}]},{"type":"text","text":"on"}]}]})");
  EXPECT_EQ(post("/v1/messages/count_tokens", body.dump()).get().status, 200);
  std::size_t refused = 0;
  const Json leaves = body.flatten();
  for (const auto& [path, value] : leaves.items()) {
    for (Json::json_pointer at(path); !at.empty(); at.pop_back()) {
      for (const char* other : {"null", "1", "-0.5", "true", R"("a")", "[]", "{}", "[1]", R"([{"type":"x"}])"}) {
        Json changed = body;
        changed[at] = parsed(other);
        const Answer got = post("/v1/messages/count_tokens", changed.dump()).get();
        EXPECT_TRUE(got.status == 200 || got.status == 400) << at << " " << other << ": " << got.body;
        if (got.status == 200) continue;
        ++refused;
        EXPECT_EQ(got.json()["error"]["type"], "invalid_request_error") << got.body;
      }
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST_F(MessagesTest, TokensAreCounted) {
  const Answer got = post("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"hi"}]})").get();
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.json(), parsed(R"({"input_tokens":2})"));
  EXPECT_EQ(engine_.submitted(), 0u);
}

}  // namespace
}  // namespace millrace::api::testing
