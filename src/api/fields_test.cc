// The fields that generating endpoints share: what is taken, what is refused, and that every refusal names its field.
#include "api/fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/model_names.h"
#include "kv/extra_key.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

ModelFacts model() {
  ModelFacts facts;
  facts.name = "demo";
  facts.vocab_size = 100;
  facts.context_length = 64;
  return facts;
}

Result<CommonFields> read(const std::string& text, const ModelFacts& facts = model()) {
  ASSIGN_OR_RETURN(const Json body, parse_body(text));
  return read_common(body, text, facts, kOpenAiDialect);
}

// The sampling fields alone, where the body is good.
wire::SamplingParams params(const std::string& text, const ModelFacts& facts = model()) {
  auto out = read(text, facts);
  EXPECT_TRUE(out.ok()) << text << ": " << out.status().to_string();
  return out.ok() ? out->sampling.params : wire::SamplingParams();
}

TEST(Fields, TheBodyMustBeAnObject) {
  EXPECT_TRUE(parse_body("{}").ok());
  for (const char* text : {"", "[]", "1", "null", "{", "{\"a\":1,\"a\":2}"})
    EXPECT_FALSE(parse_body(text).ok()) << text;
}

TEST(Fields, DefaultsAreOpenAisUnlessTheModelHasSome) {
  auto plain = read("{}");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->sampling.params.temperature, 1.0);
  EXPECT_EQ(plain->sampling.params.top_p, 1.0);
  EXPECT_EQ(plain->sampling.params.min_p, 0.0);
  EXPECT_EQ(plain->sampling.params.top_k, -1);
  EXPECT_EQ(plain->sampling.params.repetition_penalty, 1.0);
  EXPECT_FALSE(plain->sampling.max_tokens.has_value());
  EXPECT_FALSE(plain->stream);
  EXPECT_TRUE(plain->sampling.params.skip_special_tokens);
  ModelFacts defaults = model();
  defaults.temperature = 0.6;
  defaults.top_p = 0.95;
  defaults.top_k = 20;
  defaults.min_p = 0.05;
  defaults.repetition_penalty = 1.1;
  auto taken = read(R"({"top_p": 0.5, "temperature": null})", defaults);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->sampling.params.temperature, 0.6);
  EXPECT_EQ(taken->sampling.params.top_p, 0.5);
  EXPECT_EQ(taken->sampling.params.top_k, 20);
  EXPECT_EQ(taken->sampling.params.min_p, 0.05);
  EXPECT_EQ(taken->sampling.params.repetition_penalty, 1.1);
}

TEST(Fields, EverythingIsRead) {
  auto out = read(R"({"temperature":0,"top_p":0.9,"min_p":0.1,"top_k":5,"seed":-7,"stop":["a","b"],
    "stop_token_ids":[3,99],"ignore_eos":true,"skip_special_tokens":false,"include_stop_str_in_output":true,
    "max_tokens":9,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},
    "cache_salt":"s","another_servers_field":{"x":1},"frequency_penalty":0.0,"n":1,"tools":[],
    "response_format":{"type":"text"},"user":"me"})");
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->sampling.params.temperature, 0.0);
  EXPECT_EQ(out->sampling.params.top_k, 5);
  EXPECT_EQ(out->sampling.params.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(out->sampling.params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(out->sampling.params.stop_token_ids, (std::vector<int32_t>{3, 99}));
  EXPECT_TRUE(out->sampling.params.ignore_eos);
  EXPECT_FALSE(out->sampling.params.skip_special_tokens);
  EXPECT_TRUE(out->sampling.params.include_stop_str_in_output);
  EXPECT_EQ(out->sampling.max_tokens, 9);
  EXPECT_TRUE(out->stream && out->include_usage && out->continuous_usage);
  EXPECT_EQ(out->request.extra_key, ExtraKey().add("cache_salt", "s").str());
  EXPECT_EQ(params(R"({"stop":"one"})").stop, std::vector<std::string>{"one"});
  EXPECT_EQ(params(R"({"top_k":0})").top_k, -1);
  EXPECT_EQ(read(R"({"max_completion_tokens":4})")->sampling.max_tokens, 4);
}

// One line a refusal: the body, the field that `param` must name, and a part of the message.
TEST(Fields, RefusalsNameTheFieldTheValueAndTheWish) {
  struct Case {
    std::string body, param, message;
  };
  const std::string many_stops = "[" + [] {
    std::string out = "\"x\"";
    for (std::size_t i = 0; i < wire::kMaxStopStrings; ++i) out += ",\"x\"";
    return out;
  }() + "]";
  const Case cases[] = {
      {R"({"temperature":-0.1})", "temperature", "-0.1"},
      {R"({"temperature":2.5})", "temperature", "[0, 2]"},
      {R"({"temperature":"hot"})", "temperature", "string"},
      {R"({"temperature":true})", "temperature", "boolean"},
      {R"({"top_p":0})", "top_p", "(0, 1]"},
      {R"({"top_p":1.01})", "top_p", "1.01"},
      {R"({"min_p":-1})", "min_p", "[0, 1]"},
      {R"({"top_k":-2})", "top_k", "-2"},
      {R"({"top_k":1.5})", "top_k", "number"},
      {R"({"seed":"x"})", "seed", "integer"},
      {R"({"max_tokens":0})", "max_tokens", "[1, "},
      {R"({"max_tokens":2147483648})", "max_tokens", "2147483648"},
      {R"({"max_completion_tokens":-1})", "max_completion_tokens", "-1"},
      {R"({"stop":7})", "stop", "integer"},
      {R"({"stop":["a",1]})", "stop", "integer"},
      {R"({"stop":[""]})", "stop", "empty"},
      {R"({"stop":")" + std::string(wire::kMaxStopStringBytes + 1, 'x') + "\"}", "stop", "1025"},
      {R"({"stop":)" + many_stops + "}", "stop", "17"},
      {R"({"stop_token_ids":3})", "stop_token_ids", "array"},
      {R"({"stop_token_ids":[100]})", "stop_token_ids", "100"},
      {R"({"stop_token_ids":[-1]})", "stop_token_ids", "-1"},
      {R"({"stop_token_ids":[1.0]})", "stop_token_ids", "1.0"},
      {R"({"stream":1})", "stream", "boolean"},
      {R"({"stream":true,"stream_options":[]})", "stream_options", "object"},
      {R"({"stream_options":{}})", "stream_options", "stream: true"},
      {R"({"ignore_eos":"no"})", "ignore_eos", "boolean"},
      {R"({"cache_salt":")" + std::string(wire::kMaxNameBytes + 1, 'x') + "\"}", "cache_salt", "257"},
      {R"({"structural_tag":{"type":"tag"}})", "structural_tag.type", "wanted structural_tag"},
      {R"({"structural_tag":7})", "structural_tag", "no object"},
      {R"({"structural_tag":{"format":{"type":"any_text"}}})", "structural_tag.format.type", "any_text"},
      {R"({"structural_tag":{"format":{"type":"triggered_tags","at_least_one":true}}})",
       "structural_tag.format.at_least_one", "at_least_one"},
      {R"({"structural_tag":")" + std::string(wire::kMaxGrammarBytes + 1, '[') + "\"}", "structural_tag",
       "wanted at most 262144"},
      {R"({"regex":["a"]})", "regex", "array"},
      {R"({"regex":"a","guided_json":{}})", "regex", "beside guided_json"},
      {R"({"regex":"a","ignore_eos":true})", "ignore_eos", "beside regex"},
  };
  for (const Case& each : cases) {
    const auto out = read(each.body);
    ASSERT_FALSE(out.ok()) << each.body.substr(0, 80);
    const ApiError error = field_error(out.status());
    EXPECT_EQ(error.http_status, 400) << each.body.substr(0, 80);
    EXPECT_EQ(error.param, each.param) << error.message;
    EXPECT_NE(error.message.find(each.message), std::string::npos) << error.message;
  }
}

// A schema keeps the sequence in which the client wrote its members.
TEST(Fields, WhatTheTextShallBe) {
  using wire::GrammarKind;
  const std::pair<const char*, wire::GrammarSource> cases[] = {
      {R"({"regex":"a+"})", {GrammarKind::kRegex, "a+", "regex"}},
      {R"({"ebnf":"root ::= [a]"})", {GrammarKind::kEbnf, "root ::= [a]", "ebnf"}},
      {R"({"guided_choice":["b\"","a\n"]})", {GrammarKind::kRegex, R"((b\"|a\x0a))", "guided_choice"}},
      {R"({"json_schema":"{ \"z\": 1 }"})", {GrammarKind::kJsonSchema, R"({ "z": 1 })", "json_schema"}},
      {R"({"response_format":{"type":"json_object"}})",
       {GrammarKind::kJsonSchema, R"({"type":"object"})", "response_format"}},
      {R"({"response_format":{"json_schema":{"schema":{"z":{"y":1,"x":2},"a":0}},"type":"json_schema"}})",
       {GrammarKind::kJsonSchema, R"({"z":{"y":1,"x":2},"a":0})", "response_format.json_schema.schema"}},
      {R"({"structured_outputs":{"json":{"z":1,"a":0}}})",
       {GrammarKind::kJsonSchema, R"({"z":1,"a":0})", "structured_outputs.json"}},
      {R"({"response_format":{"type":"structural_tag","structures":[{"begin":"<a>","schema":{"z":1,"a":0},"end":"b"}],"triggers":["<"]}})",
       {GrammarKind::kStructuralTag,
        R"({"triggers":["<"],"structures":[{"begin":"<a>","schema":{"z":1,"a":0},"end":"b"}]})", "response_format"}},
      {R"({"structural_tag":"{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<\"],\"tags\":[{\"begin\":\"<a>\",\"content\":)"
       R"({\"type\":\"json_schema\",\"json_schema\":true},\"end\":\"b\"}]}}"})",
       {GrammarKind::kStructuralTag, R"({"triggers":["<"],"structures":[{"begin":"<a>","end":"b","schema":true}]})",
        "structural_tag"}},
  };
  for (const auto& [body, wanted] : cases) {
    const auto out = read(body);
    ASSERT_TRUE(out.ok()) << body << ": " << out.status().message();
    const auto& found = out->sampling.params.grammar;
    ASSERT_TRUE(found.has_value()) << body;
    EXPECT_EQ(found->kind, wanted.kind) << body;
    EXPECT_EQ(found->text, wanted.text) << body;
    EXPECT_EQ(found->field, wanted.field) << body;
  }
  for (const char* body : {"{}", R"({"response_format":{"type":"text"}})", R"({"grammar":""})"}) {
    EXPECT_FALSE(read(body)->sampling.params.grammar.has_value()) << body;
  }
}

// What another server would answer otherwise: each field of theirs that is not served is refused by its name, and its
// neutral value passes.
TEST(Fields, WhatIsNotServedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"functions", R"([{"name":"f"}])"},
      {"function_call", R"({"name":"f"})"},
      {"web_search_options", "{}"},
      {"guided_whitespace_pattern", R"(" ")"},
      {"grammar_lazy", "true"},
      {"lora_path", R"("adapter")"},
      {"lora", R"([{"id":0,"scale":1}])"},
      {"bad_words", R"(["a"])"},
      {"allowed_token_ids", "[1]"},
      {"use_beam_search", "true"},
      {"chat_template", R"("{{ messages }}")"},
      {"logprob_token_ids", "[5]"},
      {"detokenize", "false"},
      {"watermarking", "true"},
      {"reasoning_budget_tokens", "0"},
      {"thinking_budget_tokens", "0"},
      {"reasoning_control", "true"},
      {"generation_prompt", "\"a\""},
      {"mirostat", "2"},
      {"repeat_penalty", "1.1"},
      {"typical_p", "0.5"},
      {"n_probs", "3"},
  };
  for (const auto& [key, value] : cases) {
    const auto out = read(fmt::format(R"({{"{}":{}}})", key, value));
    ASSERT_FALSE(out.ok()) << key;
    const ApiError error = field_error(out.status());
    EXPECT_EQ(error.http_status, 400) << key;
    EXPECT_EQ(error.param, key) << error.message;
    EXPECT_NE(error.message.find("not supported"), std::string::npos) << error.message;
    EXPECT_TRUE(read(fmt::format(R"({{"{}":null}})", key)).ok()) << key;
  }
  const char* neutral[] = {
      R"({"modalities":["text"],"functions":[],"function_call":"none","bad_words":[],"lora":[]})",
      R"({"use_beam_search":false,"mirostat":0,"typical_p":1.0,"repeat_penalty":1,"n_probs":0,"grammar":""})",
  };
  for (const char* body : neutral) EXPECT_TRUE(read(body).ok()) << body;
}

TEST(Fields, AnErrorsParamIsAField) {
  for (const auto& [message, param] : {std::pair("temperature is 9; wanted less", "temperature"),
                                       {"the body has 9 bytes; wanted less", ""},
                                       {"/v1/realtime is not served here; wanted another server", ""}}) {
    EXPECT_EQ(field_error(Status(StatusCode::kUnsupported, message)).param, param) << message;
  }
}

TEST(Fields, TheModelsName) {
  const auto check = [](const std::string& text) { return ModelNames{{"demo"}}.read(*parse_body(text)).status(); };
  EXPECT_TRUE(check("{}").ok());
  EXPECT_TRUE(check(R"({"model":"demo"})").ok());
  EXPECT_TRUE(check(R"({"model":null})").ok());
  const ApiError missing = field_error(check(R"({"model":"gpt-4"})"));
  EXPECT_EQ(missing.http_status, 404);
  EXPECT_EQ(missing.code, "model_not_found");
  EXPECT_EQ(missing.param, "model");
  EXPECT_NE(missing.message.find("'gpt-4'"), std::string::npos);
  EXPECT_NE(missing.message.find("'demo'"), std::string::npos);
  EXPECT_EQ(field_error(check(R"({"model":5})")).http_status, 400);
  EXPECT_LT(check(R"({"model":")" + std::string(5000, 'x') + "\"}").message().size(), 400u);
  const ModelNames any{{"demo", "two"}, true};
  EXPECT_EQ(*any.read(*parse_body("{}")), "demo");
  EXPECT_EQ(*any.read(*parse_body(R"({"model":"gpt-4"})")), "gpt-4");
  EXPECT_FALSE(any.check("").ok());
  EXPECT_TRUE(ModelNames({{"demo", "two"}}).check("two").ok());
}

TEST(Fields, AModelThatHasToBeNamed) {
  const ModelNames names{.names = {"demo", "two"}, .any = true, .required = true};
  for (const char* body : {"{}", R"({"model":null})"}) {
    const ApiError missing = field_error(names.read(*parse_body(body)).status());
    EXPECT_EQ(missing.http_status, 400);
    EXPECT_EQ(missing.param, "model");
    EXPECT_EQ(missing.message, "model is missing; wanted one of 'demo', 'two'");
  }
  EXPECT_EQ(*names.read(*parse_body(R"({"model":"gpt-4"})")), "gpt-4");
  EXPECT_EQ(field_error(names.read(*parse_body(R"({"model":5})")).status()).param, "model");
}

}  // namespace
}  // namespace millrace::api
