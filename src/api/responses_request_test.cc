// What a request to /v1/responses becomes as a chat.
#include "api/responses_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

Result<ResponsesBody> translate(const std::string& body, const MediaFacts& facts = {}) {
  ASSIGN_OR_RETURN(const Json json, parse_json(body));
  MediaParts media(facts, MediaDialect::kResponses);
  return translate_responses(json, body, media);
}

// One field of the chat, as text, or the error.
std::string field(const std::string& body, const char* key) {
  const auto chat = translate(body);
  if (!chat.ok()) return chat.status().message();
  const auto ordered = nlohmann::ordered_json::parse(chat->chat);
  return ordered.contains(key) ? ordered[key].dump() : "";
}

std::string messages(const std::string& input, const std::string& more = "") {
  return field(R"({"input":)" + input + more + "}", "messages");
}

TEST(ResponsesRequest, TextsAreMessages) {
  EXPECT_EQ(messages(R"("hi")"), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"type":"message","role":"user","content":)"
                     R"([{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]}])"),
            R"([{"role":"user","content":"a"},{"role":"user","content":"b\nc"}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"type":"message","id":"msg_1","status":"completed",)"
                     R"("role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]},)"
                     R"({"type":"refusal","refusal":"no"}]},{"role":"user","content":""}])"),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b\nno"},{"role":"user","content":""}])");
}

TEST(ResponsesRequest, InstructionsAndTheFirstSystemMessagesAreOne) {
  EXPECT_EQ(messages(R"("hi")", R"(,"instructions":"s")"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"hi"}])");
  EXPECT_EQ(
      messages(R"([{"role":"developer","content":"d"},{"role":"system","content":"t"},)"
               R"({"role":"user","content":"hi"},{"role":"developer","content":"e"}])",
               R"(,"instructions":"s")"),
      R"([{"role":"system","content":"s\nd\nt"},{"role":"user","content":"hi"},{"role":"system","content":"e"}])");
  EXPECT_EQ(messages(R"("hi")", R"(,"instructions":"")"), R"([{"role":"user","content":"hi"}])");
}

TEST(ResponsesRequest, CallsAndTheirOutputs) {
  const std::string call = R"({"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{}"})";
  EXPECT_EQ(
      messages(R"([{"role":"user","content":"go"},{"type":"reasoning","id":"rs_1","summary":[],"content":)"
               R"([{"type":"reasoning_text","text":"hm"}]},{"role":"assistant","content":"so"},)" +
               call +
               R"(,{"type":"function_call","call_id":"call_2","name":"g","arguments":"{\"a\":1}"},)"
               R"({"type":"function_call_output","call_id":"call_1","output":"r"},{"type":"function_call_output",)"
               R"("call_id":"call_2","output":[{"type":"input_text","text":"x"},{"type":"input_text","text":"y"}]}])"),
      R"([{"role":"user","content":"go"},{"role":"assistant","content":"so","reasoning_content":"hm","tool_calls":)"
      R"([{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}},)"
      R"({"id":"call_2","type":"function","function":{"name":"g","arguments":"{\"a\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"call_1","content":"r"},{"role":"tool","tool_call_id":"call_2","content":"x\ny"}])");
  std::string many = R"([{"role":"user","content":"go"})";
  for (int i = 0; i < 129; ++i) many += "," + call;
  EXPECT_EQ(messages(many + "]"), "input[129] is call 129 of one turn; wanted at most 128");
}

TEST(ResponsesRequest, ReasoningWithoutItsTextIsNothing) {
  EXPECT_EQ(messages(R"([{"type":"reasoning","id":"rs_1","encrypted_content":"x","summary":[{"type":"summary_text",)"
                     R"("text":"s"}]},{"role":"user","content":"hi"}])"),
            R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages(R"([{"type":"reasoning","id":"rs_1","summary":[]}])"),
            "input has no message; wanted at least one");
}

TEST(ResponsesRequest, ToolsAndTheirChoice) {
  const std::string tools = R"({"input":"hi","tools":[{"type":"function","name":"f","description":"d","strict":true,)"
                            R"("parameters":{"type":"object","properties":{"z":{},"a":{}}}},)"
                            R"({"type":"function","name":"g","parameters":null}],"tool_choice":)";
  const std::string f = R"({"type":"function","function":{"name":"f","description":"d","parameters":)"
                        R"({"type":"object","properties":{"z":{},"a":{}}},"strict":true}})";
  const std::string g = R"({"type":"function","function":{"name":"g"}})";
  EXPECT_EQ(field(tools + "null}", "tools"), "[" + f + "," + g + "]");
  const auto choice = [&](const std::string& value) { return field(tools + value + "}", "tool_choice"); };
  EXPECT_EQ(choice("null"), "");
  EXPECT_EQ(choice(R"("auto")"), R"("auto")");
  EXPECT_EQ(choice(R"("none")"), R"("none")");
  EXPECT_EQ(choice(R"("required")"), R"("required")");
  EXPECT_EQ(choice(R"({"type":"function","name":"g"})"), g);
  EXPECT_EQ(choice(R"({"type":"function","name":"h"})"),
            "tool_choice.name is 'h'; wanted the name of one of the tools");
  const std::string allowed = R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]})";
  EXPECT_EQ(choice(allowed), R"("required")");
  EXPECT_EQ(field(tools + allowed + "}", "tools"), "[" + g + "]");
  EXPECT_EQ(field(tools + R"(null,"parallel_tool_calls":false})", "parallel_tool_calls"), "false");
}

TEST(ResponsesRequest, Reasoning) {
  const auto effort = [](const std::string& value, const char* key) {
    return field(R"({"input":"hi","reasoning":)" + value + "}", key);
  };
  EXPECT_EQ(effort(R"({"effort":"high","summary":"auto"})", "reasoning_effort"), R"("high")");
  EXPECT_EQ(effort(R"({"effort":"none"})", "reasoning_effort"), R"("none")");
  EXPECT_NE(effort(R"({"effort":"more"})", "reasoning_effort").find("reasoning.effort is 'more'; wanted none, "),
            std::string::npos);
  EXPECT_EQ(effort(R"({"effort":null,"summary":null})", "reasoning_effort"), "");
}

TEST(ResponsesRequest, Logprobs) {
  const auto top = [](const std::string& more) { return translate(R"({"input":"hi")" + more + "}")->top_logprobs; };
  EXPECT_EQ(top(""), std::nullopt);
  EXPECT_EQ(top(R"(,"include":["reasoning.encrypted_content"],"top_logprobs":0)"), std::nullopt);
  EXPECT_EQ(top(R"(,"include":["message.output_text.logprobs"])"), 0);
  EXPECT_EQ(top(R"(,"include":["message.output_text.logprobs"],"top_logprobs":3)"), 3);
}

TEST(ResponsesRequest, FieldsOfThisServerStay) {
  for (const char* key : {"include_stop_str_in_output", "no_stop_trim", "skip_special_tokens"}) {
    EXPECT_EQ(field(R"({"input":"hi",")" + std::string(key) + R"(":true})", key), "true");
  }
}

TEST(ResponsesRequest, WhatIsNotServedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("conversation":{"id":"conv_1"})", "conversation is not supported"},
      {R"("background":1)", "background is"},
      {R"("background":true,"stream":true)", "background is true, and so is stream"},
      {R"("background":true,"store":false)", "background is true, and store is false"},
      {R"("background":true,"rid":"a")", "rid is not supported beside background"},
      {R"("max_tokens":5)", "max_tokens is not supported"},
      {R"("vllm_xargs":{})", "vllm_xargs is not supported"},
      {R"("mm_processor_kwargs":{})", "mm_processor_kwargs is not supported"},
      {R"("previous_input_messages":[{}])", "previous_input_messages is not supported; wanted [] or nothing"},
      {R"("truncation":"auto")", "truncation is not supported; wanted \"disabled\" or nothing"},
      {R"("include":["file_search_call.results"])", "include[0] is 'file_search_call.results'"},
      {R"("include":[1])", "include[0] is of type integer"},
      {R"("top_logprobs":3)", "top_logprobs is 3 without message.output_text.logprobs"},
      {R"("reasoning":{"effort":"huge"})", "reasoning.effort is 'huge'"},
      {R"("reasoning":{"summary":"detailed"})", "reasoning: summary is not supported"},
      {R"("text":{"verbosity":"low"})", "text: verbosity is not supported"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type is 'web_search'; wanted 'function'"},
      {R"("tools":[{"type":"mcp","server_label":"x"}])", "tools[0].type is 'mcp'"},
      {R"("tools":[{"type":"function","name":"a b"}])", "tools[0].name is 'a b'"},
      {R"("tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}])", "tools[1].name is 'f'"},
      {R"("tool_choice":"required")", "tool_choice is 'required' without tools"},
      {R"("tool_choice":"any")", "tool_choice is 'any'"},
      {R"("tool_choice":{"type":"file_search"})", "tool_choice.type is 'file_search'"},
      {R"("tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]})", "tool_choice.tools is empty"},
  };
  for (const auto& [more, message] : cases) {
    const auto got = translate(R"({"input":"hi",)" + std::string(more) + "}");
    ASSERT_FALSE(got.ok()) << more;
    EXPECT_NE(got.status().message().find(message), std::string::npos) << got.status().message();
  }
  const std::pair<const char*, const char*> inputs[] = {
      {"[]", "input has 0 items; wanted 1 to 4096"},
      {"7", "input is of type integer"},
      {"[7]", "input[0] is of type integer"},
      {R"([{"role":"robot","content":"x"}])", "input[0].role is 'robot'"},
      {R"([{"role":"user"}])", "input[0].content is missing"},
      {R"([{"role":"user","content":[{"type":"input_image","image_url":"x"}]}])", "content[0].type is 'input_image'"},
      {R"([{"role":"user","content":[{"type":"input_file"}]}])", "input[0].content[0].type is 'input_file'"},
      {R"([{"type":"item_reference","id":"msg_1"}])", "input[0].type is 'item_reference'"},
      {R"([{"type":"web_search_call"}])", "input[0].type is 'web_search_call'"},
      {R"([{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id is no string"},
      {R"([{"type":"function_call_output","call_id":"c"}])", "input[0].output is missing"},
  };
  for (const auto& [input, message] : inputs) {
    EXPECT_NE(messages(input).find(message), std::string::npos) << messages(input);
  }
}

// A GIF of one pixel.
constexpr char kPixel[] = R"("data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")";

std::string picture_messages(const std::string& input, const std::string& more = "") {
  MediaFacts facts;
  facts.pictures.emplace();
  const auto chat = translate(R"({"input":)" + input + more + "}", facts);
  return chat.ok() ? Json::parse(chat->chat)["messages"].dump() : chat.status().message();
}

std::string image(const std::string& more = "") {
  return R"({"type":"input_image","image_url":)" + std::string(kPixel) + more + "}";
}

TEST(ResponsesRequest, PicturesStandBetweenTexts) {
  EXPECT_EQ(
      picture_messages(R"([{"role":"user","content":[{"type":"input_text","text":"a"},)" + image(R"(,"detail":"low")") +
                       R"(,{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]}])"),
      R"([{"content":[{"text":"a","type":"text"},{"type":"image"},{"text":"b\nc","type":"text"}],"role":"user"}])");
  EXPECT_EQ(picture_messages(R"([{"type":"function_call_output","call_id":"c","output":[)" + image() + "]}]"),
            R"([{"content":[{"type":"image"}],"role":"tool","tool_call_id":"c"}])");
  EXPECT_EQ(picture_messages(R"([{"role":"developer","content":[)" + image() + "]}]", R"(,"instructions":"i")"),
            R"([{"content":[{"text":"i","type":"text"},{"type":"image"}],"role":"system"}])");
  const std::pair<std::string, const char*> cases[] = {
      {image(R"(,"detail":"original")"), "[0].detail is 'original'; wanted auto, low or high"},
      {image(R"(,"file_id":"f")"), "[0].file_id is not supported"},
      {image(R"(,"max_pixels":1)"), "[0]: max_pixels is not supported"},
      {R"({"type":"input_image"})", "[0].image_url is no string"},
      {R"({"type":"input_image","image_url":"file:///a"})", "[0].image_url begins with 'file:///'"},
      {R"({"type":"input_audio"})",
       "[0].type is 'input_audio'; wanted input_text, output_text, refusal or input_image"},
  };
  for (const auto& [part, message] : cases) {
    const std::string got = picture_messages(R"([{"role":"user","content":[)" + part + "]}]");
    EXPECT_NE(got.find(std::string("input[0].content") + message), std::string::npos) << got;
  }
}

TEST(ResponsesRequest, TheAnswerRepeatsTheRequest) {
  wire::SamplingParams sampling;
  sampling.temperature = 0.7;
  sampling.frequency_penalty = 0.5;
  const Json plain = Json::parse("{" + request_members(R"({"input":"hi"})", sampling, true) + "}");
  EXPECT_EQ(plain,
            Json::parse(R"({"background":false,"frequency_penalty":0.5,"instructions":null,"max_output_tokens":null,)"
                        R"("max_tool_calls":null,"metadata":{},"presence_penalty":0.0,)"
                        R"("prompt_cache_key":null,"safety_identifier":null,"service_tier":"default",)"
                        R"("parallel_tool_calls":true,"previous_response_id":null,)"
                        R"("reasoning":{"effort":null,"summary":null},"store":true,"temperature":0.7,)"
                        R"("text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto",)"
                        R"("tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled"})"));
  const Json full = Json::parse(
      "{" +
      request_members(R"({"input":"hi","tools":[{"type":"function","name":"f"}],"metadata":{"a":"b"},"user":"u",)"
                      R"("prompt_cache_key":"k","max_tool_calls":3,)"
                      R"("previous_response_id":"resp_1"})",
                      sampling, false) +
      "}");
  EXPECT_EQ(full["store"], false);
  EXPECT_EQ(full["previous_response_id"], "resp_1");
  EXPECT_EQ(full["tools"], Json::parse(R"([{"type":"function","name":"f","description":null,"parameters":null,)"
                                       R"("strict":null}])"));
  EXPECT_EQ(full["metadata"], Json::parse(R"({"a":"b"})"));
  EXPECT_EQ(full["user"], "u");
  EXPECT_EQ(full["prompt_cache_key"], "k");
  EXPECT_EQ(full["max_tool_calls"], 3);
}

}  // namespace
}  // namespace millrace::api
