// What clients of OpenAI's Responses API get for what the engine reports, over real sockets. Shapes are those of
// OpenAI's API reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/reply_format.h"
#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using Kind = wire::OutputEvent::Kind;
using wire::FinishReason;

constexpr char kPath[] = "/v1/responses";
constexpr char kBody[] = R"({"input":"hi","max_output_tokens":7)";

class ResponsesTest : public ApiHarness {
 protected:
  // The items that the events of a stream add up to, part by part.
  static Json items_of(const Answer& answer) {
    Json items = Json::array();
    int64_t number = 0;
    for (const std::string& event : answer.events) {
      const Json json = parsed(event);
      EXPECT_EQ(json["sequence_number"], number++);
      const std::string type = json["type"];
      if (!json.contains("output_index")) continue;
      if (type == "response.output_item.added") {
        EXPECT_EQ(json["output_index"], items.size());
        EXPECT_EQ(json["item"]["status"], "in_progress");
        items.push_back(json["item"]);
        continue;
      }
      EXPECT_EQ(json["output_index"], items.size() - 1);
      Json& item = items.back();
      if (type == "response.output_item.done") {
        item["status"] = json["item"]["status"];
        EXPECT_EQ(item, json["item"]);
        continue;
      }
      EXPECT_EQ(json["item_id"], item["id"]);
      if (type == "response.content_part.added") item["content"].push_back(json["part"]);
      Json& text = item["type"] == "function_call" ? item["arguments"] : item["content"].back()["text"];
      if (type.ends_with(".delta")) text = text.get<std::string>() + json["delta"].get<std::string>();
      if (type.ends_with("text.done")) {
        EXPECT_EQ(text, json["text"]);
      }
      if (type.ends_with("arguments.done")) {
        EXPECT_EQ(text, json["arguments"]);
      }
      if (type == "response.content_part.done") {
        EXPECT_EQ(item["content"].back(), json["part"]);
      }
    }
    return items;
  }
  static Json without_ids(Json items) {
    for (Json& item : items) {
      const std::string prefix = item["type"] == "message" ? "msg_" : item["type"] == "reasoning" ? "rs_" : "fc_";
      EXPECT_TRUE(item["id"].get<std::string>().starts_with(prefix));
      item.erase("id");
      if (item["type"] != "function_call") continue;
      EXPECT_TRUE(item["call_id"].get<std::string>().starts_with("call_"));
      item.erase("call_id");
    }
    return items;
  }
  // The types of the events without "response.", a row of the same one once.
  static std::string types(const Answer& answer) {
    std::string out, last;
    for (const std::string& event : answer.events) {
      std::string type = parsed(event)["type"];
      if (type.starts_with("response.")) type = type.substr(9);
      if (type != last) out += type + " ";
      last = type;
    }
    return out;
  }
  static Json message(const std::string& text, const std::string& status = "completed") {
    Json part = {{"type", "output_text"}, {"annotations", Json::array()}, {"logprobs", Json::array()}, {"text", text}};
    return {{"type", "message"}, {"role", "assistant"}, {"status", status}, {"content", Json::array({part})}};
  }
};

TEST_F(ResponsesTest, Complete) {
  auto answer = post(kPath, std::string(kBody) + R"(,"temperature":0.5,"stop":["X"],"metadata":{"a":"b"}})");
  wait_submitted(1);
  EXPECT_EQ(engine_.request(0).max_tokens, 7);
  EXPECT_EQ(engine_.request(0).sampling.stop, std::vector<std::string>{"X"});
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_text = "X"}, 3, "lo");
  const Json body = answer.get().json();
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["store"], true);
  EXPECT_EQ(body["metadata"], parsed(R"({"a":"b"})"));
  EXPECT_TRUE(body["error"].is_null() && body["incomplete_details"].is_null());
  EXPECT_EQ(without_ids(body["output"]), Json::array({message("Hello")}));
  EXPECT_EQ(body["usage"], parsed(R"({"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":3,)"
                                  R"("output_tokens_details":{"reasoning_tokens":0},"total_tokens":8})"));
}

TEST_F(ResponsesTest, Streamed) {
  auto answer = post(kPath, std::string(kBody) + R"(,"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "Hel", 1);
  engine_.text(0, "lo", 2);
  engine_.end(0, {.reason = FinishReason::kLength}, 3);
  const Answer got = answer.get();
  EXPECT_EQ(types(got),
            "created in_progress output_item.added content_part.added output_text.delta output_text.done "
            "content_part.done output_item.done incomplete ");
  EXPECT_EQ(without_ids(items_of(got)), Json::array({message("Hello", "incomplete")}));
  const Json first = parsed(got.events.front())["response"], last = parsed(got.events.back())["response"];
  EXPECT_EQ(first["status"], "in_progress");
  EXPECT_EQ(first["output"], Json::array());
  EXPECT_TRUE(first["usage"].is_null());
  EXPECT_EQ(last["id"], first["id"]);
  EXPECT_EQ(last["status"], "incomplete");
  EXPECT_EQ(last["incomplete_details"], parsed(R"({"reason":"max_output_tokens"})"));
  EXPECT_EQ(last["output"], items_of(got));
  EXPECT_EQ(last["usage"]["output_tokens"], 3);
}

TEST_F(ResponsesTest, ItemsOfAStreamAreThoseOfAnAnswer) {
  engine_.facts.tool_dialect = wire::ToolDialect::kQwen;
  const std::string body = std::string(kBody) + R"(,"tools":[{"type":"function","name":"f"}])";
  const Json expected = Json::array(
      {parsed(R"({"type":"reasoning","summary":[],"status":"completed",)"
              R"("content":[{"type":"reasoning_text","text":"hm"}]})"),
       message("so"), parsed(R"({"type":"function_call","name":"f","arguments":"{\"a\":1}","status":"completed"})"),
       parsed(R"({"type":"function_call","name":"f","arguments":"{}","status":"completed"})"), message("on")});
  for (const bool one_call : {false, true}) {
    Json wanted = expected;
    if (one_call) wanted.erase(3);
    const std::string more = one_call ? R"(,"parallel_tool_calls":false)" : "";
    for (const bool streamed : {false, true}) {
      const std::size_t index = engine_.submitted();
      auto answer = post(kPath, body + more + (streamed ? R"(,"stream":true})" : "}"));
      wait_submitted(index + 1);
      deliver_two_calls(index);
      const Answer got = answer.get();
      EXPECT_EQ(without_ids(streamed ? items_of(got) : got.json()["output"]), wanted);
      if (streamed) {
        EXPECT_EQ(parsed(got.events.back())["response"]["output"], items_of(got));
      }
    }
  }
}

TEST_F(ResponsesTest, AnAnswerWithoutATokenIsAnEmptyMessage) {
  auto answer = post(kPath, std::string(kBody) + "}");
  wait_submitted(1);
  engine_.accept(0);
  engine_.end(0, {.reason = FinishReason::kStop, .matched_token = 3}, 1);
  EXPECT_EQ(without_ids(answer.get().json()["output"]), Json::array({message("")}));
}

TEST_F(ResponsesTest, LogprobsOfItsTokens) {
  const std::string body = std::string(kBody) + R"(,"include":["message.output_text.logprobs"],"top_logprobs":1)";
  const Json token = parsed(R"({"token":"t7","logprob":-0.5,"bytes":[116,55],"top_logprobs":[{"token":"t8",)"
                            R"("logprob":-0.25,"bytes":[116,56]}]})");
  for (const bool streamed : {false, true}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kPath, body + (streamed ? R"(,"stream":true})" : "}"));
    wait_submitted(index + 1);
    EXPECT_EQ(engine_.request(index).sampling.top_logprobs, 1);
    engine_.accept(index);
    for (int i = 1; i <= 2; ++i) engine_.token(index, 7, "t7", {5, i, 2}, -0.5, {{8, -0.25}, {9, -3}});
    engine_.end(index, {.reason = FinishReason::kStop, .matched_token = 3}, 3);
    const Answer got = answer.get();
    const Json response = streamed ? parsed(got.events.back())["response"] : got.json();
    EXPECT_EQ(response["output"][0]["content"][0]["logprobs"], Json::array({token, token}));
    EXPECT_EQ(response["top_logprobs"], 1);
    if (!streamed) continue;
    const Json delta = parsed(got.events[4]);
    EXPECT_EQ(delta["type"], "response.output_text.delta");
    EXPECT_EQ(delta["logprobs"], Json::array({token}));
  }
  engine_.facts.reasoning_dialect = wire::ReasoningDialect::kThink;
  const Answer refused = post(kPath, body + "}").get();
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "include");
}

// The last events repeat all of it: megabytes, over what may wait in a stream.
TEST_F(ResponsesTest, ALargeStreamArrivesToItsEnd) {
  constexpr int kTokens = 1500, kRivals = 20;
  engine_.facts.context_length = kTokens;
  auto answer = post(kPath, R"({"input":"hi","stream":true,"include":["message.output_text.logprobs"],)"
                            R"("top_logprobs":20})");
  wait_submitted(1);
  engine_.accept(0);
  std::vector<std::pair<int32_t, double>> rivals;
  for (int i = 0; i < kRivals; ++i) rivals.emplace_back(i, -1.5 - i);
  for (int i = 1; i <= kTokens; ++i) engine_.token(0, 7, "t7", {5, i, 2}, -0.5, rivals);
  engine_.end(0, {.reason = FinishReason::kLength}, kTokens);
  const Answer got = answer.get();
  const Json last = parsed(got.events.back());
  EXPECT_EQ(last["type"], "response.incomplete");
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["logprobs"].size(), kTokens);
  EXPECT_EQ(last["sequence_number"], got.events.size() - 1);
  EXPECT_GT(context_->state->answers.held(), kInlineAnswerBytes);  // else another thread would not have rendered it
}

TEST_F(ResponsesTest, AnAbortedAnswerIsIncomplete) {
  auto answer = post(kPath, std::string(kBody) + R"(,"rid":"r"})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "a", 1);
  engine_.cancel(ReqId{1});
  const Json body = answer.get().json();
  EXPECT_EQ(body["id"], "r");
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "abort");
  EXPECT_EQ(without_ids(body["output"]), Json::array({message("a", "incomplete")}));
}

TEST_F(ResponsesTest, ErrorsBeforeAStreamHaveTheirStatus) {
  engine_.refuse = [](std::size_t) { return Status(StatusCode::kUnavailable, "loading"); };
  const Answer loading = post(kPath, std::string(kBody) + R"(,"stream":true})").get();
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(loading.json()["error"]["message"], "loading");
}

TEST_F(ResponsesTest, AnErrorInAStreamFailsTheResponse) {
  auto answer = post(kPath, std::string(kBody) + R"(,"stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, "a", 1);
  engine_.deliver(0, FakeEngine::error_of(0, Status(StatusCode::kUnavailable, "the scheduler is gone")));
  const Answer got = answer.get();
  EXPECT_EQ(types(got), "created in_progress output_item.added content_part.added output_text.delta error failed ");
  const Json error = parsed(got.events[got.events.size() - 2]), failed = parsed(got.events.back());
  EXPECT_EQ(error, parsed(R"({"type":"error","sequence_number":5,"code":"server_error",)"
                          R"("message":"the scheduler is gone","param":null})"));
  EXPECT_EQ(failed["sequence_number"], 6);
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"], parsed(R"({"code":"server_error","message":"the scheduler is gone"})"));
  EXPECT_EQ(without_ids(failed["response"]["output"]), Json::array({message("a", "incomplete")}));
}

TEST_F(ResponsesTest, AStoredAnswerIsReadAgain) {
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const auto number = static_cast<std::size_t>(*stream != 0);
    auto answer = post(kPath, std::string(kBody) + R"(,"instructions":"i")" + stream + "}");
    wait_submitted(number + 1);
    engine_.accept(number);
    engine_.end(number, {.reason = FinishReason::kStop}, 3, "Hello");
    const Answer got = answer.get();
    const Json body = number ? parsed(got.events.back())["response"] : got.json();
    const std::string path = "/v1/responses/" + body["id"].get<std::string>();
    EXPECT_EQ(get(path).json(), body);
    const Json items = get(path + "/input_items").json();
    EXPECT_EQ(items["object"], "list");
    EXPECT_EQ(items["has_more"], false);
    ASSERT_EQ(items["data"].size(), 1u);
    EXPECT_EQ(items["first_id"], items["data"][0]["id"]);
    EXPECT_EQ(items["last_id"], items["first_id"]);
    EXPECT_EQ(items["data"][0]["content"], parsed(R"([{"type":"input_text","text":"hi"}])"));
    EXPECT_EQ(get(path + "?stream=true").status, 400);
    const Answer cancelled = post(path + "/cancel", "").get();
    EXPECT_EQ(cancelled.status, 400);
    EXPECT_NE(cancelled.body.find("was not created with background: true"), std::string::npos) << cancelled.body;
    EXPECT_EQ(context_->state->responses.size(), number + 1);
  }
}

TEST_F(ResponsesTest, InputItemsComeInPages) {
  context_->state->responses.add("resp_a", R"({"output":[{"id":"m2"}]})", R"([{"id":"m0"},{"id":"m1"}])", nullptr, {},
                                 unix_seconds());
  context_->state->responses.add("resp_b", R"({"output":[]})", R"([{"id":"m3"}])",
                                 context_->state->responses.find("resp_a", unix_seconds()), {}, unix_seconds());
  const auto ids = [&](const std::string& query) {
    const Json page = get("/v1/responses/resp_b/input_items" + query).json();
    std::string out = page["has_more"].get<bool>() ? "+" : "";
    for (const Json& item : page["data"]) out += item["id"].get<std::string>();
    return out;
  };
  EXPECT_EQ(ids(""), "m3m2m1m0");
  EXPECT_EQ(ids("?order=asc"), "m0m1m2m3");
  EXPECT_EQ(ids("?order=asc&limit=2"), "+m0m1");
  EXPECT_EQ(ids("?order=asc&limit=2&after=m1"), "m2m3");
  EXPECT_EQ(ids("?after=m2&limit=1"), "+m1");
  EXPECT_EQ(ids("?after=m0"), "");
  for (const char* query : {"?order=up", "?limit=0", "?limit=101", "?limit=x", "?after=m9"}) {
    EXPECT_EQ(get("/v1/responses/resp_b/input_items" + std::string(query)).status, 400) << query;
  }
}

TEST_F(ResponsesTest, WhatIsNotToBeStoredIsNot) {
  auto answer = post(kPath, std::string(kBody) + R"(,"store":false})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.end(0, {.reason = FinishReason::kStop}, 3, "Hello");
  const Json body = answer.get().json();
  EXPECT_EQ(body["store"], false);
  EXPECT_EQ(context_->state->responses.size(), 0u);
  const std::string id = body["id"];
  for (const std::string& path : {"/v1/responses/" + id, "/responses/" + id + "/input_items"}) {
    const Answer got = get(path);
    EXPECT_EQ(got.status, 404);
    EXPECT_NE(got.json()["error"]["message"].get<std::string>().find("'" + id + "' not found: it was not stored"),
              std::string::npos);
  }
  EXPECT_EQ(post("/v1/responses/" + id + "/cancel", "").get().status, 404);
  EXPECT_EQ(post(kPath, std::string(kBody) + R"(,"previous_response_id":")" + id + "\"}").get().status, 400);
  EXPECT_EQ(post(kPath, std::string(kBody) + R"(,"store":1})").get().status, 400);
}

// Every value of a body, one at a time, by values of other types.
TEST_F(ResponsesTest, NoBodyIsAnInternalError) {
  const Json body = parsed(
      R"({"max_output_tokens":9,"temperature":1,"top_p":1,"stream":false,"instructions":"s","metadata":{"user":"u"},)"
      R"("tools":[{"type":"function","name":"f","description":"d","strict":true,"parameters":{"type":"object",)"
      R"("properties":{"a":{"type":"string"}}}}],"tool_choice":{"type":"allowed_tools","mode":"required",)"
      R"("tools":[{"type":"function","name":"f"}]},"parallel_tool_calls":true,"store":true,"text":{"format":)"
      R"({"type":"text"},"verbosity":"medium"},"reasoning":{"effort":"low","summary":"auto"},"include":)"
      R"(["reasoning.encrypted_content"],"top_logprobs":0,"truncation":"disabled","user":"u","input":[)"
      R"({"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"reasoning","id":"rs_1","summary":[],)"
      R"("content":[{"type":"reasoning_text","text":"t"}]},{"type":"function_call","call_id":"c","name":"f",)"
      R"("arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}]})");
  engine_.refuse = [](std::size_t) { return Status(StatusCode::kUnavailable, "taken"); };
  EXPECT_EQ(post(kPath, body.dump()).get().status, 503);
  std::size_t refused = 0;
  const Json leaves = body.flatten();
  for (const auto& [path, value] : leaves.items()) {
    for (Json::json_pointer at(path); !at.empty(); at.pop_back()) {
      for (const char* other : {"null", "1", "-0.5", "true", R"("a")", "[]", "{}", "[1]", R"([{"type":"x"}])"}) {
        Json changed = body;
        changed[at] = parsed(other);
        const Answer got = post(kPath, changed.dump()).get();
        EXPECT_TRUE(got.status == 503 || got.status == 400) << at << " " << other << ": " << got.body;
        if (got.status == 400) ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST_F(ResponsesTest, InputTokensAreCounted) {
  const std::string path = std::string(kPath) + "/input_tokens";
  for (const char* input : {R"("hi")", R"([{"role":"user","content":"hi"}])"}) {
    const Answer got = post(path, fmt::format("{{\"input\":{}}}", input)).get();
    EXPECT_EQ(got.status, 200);
    EXPECT_EQ(got.json(), parsed(R"({"object":"response.input_tokens","input_tokens":2})"));
  }
  EXPECT_EQ(engine_.submitted(), 0u);
  for (const char* body : {"{}", R"({"input":"hi","tools":[{"type":"web_search"}]})", R"({"input":"hi","model":"x"})",
                           R"({"input":"hi","previous_response_id":"resp_x"})"}) {
    const Answer got = post(path, body).get(), wanted = post(kPath, body).get();
    EXPECT_GE(got.status, 400) << body;
    EXPECT_EQ(got.status, wanted.status);
    EXPECT_EQ(got.json(), wanted.json());
  }
}

}  // namespace
}  // namespace millrace::api::testing
