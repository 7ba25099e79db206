// Every sampling field at its edges: what is inside passes and arrives, what is outside is refused with the field's
// name, the value and the range.
#include "api/sampling_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/choices.h"
#include "api/error.h"
#include "api/fields.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

ModelFacts model() {
  ModelFacts facts;
  facts.vocab_size = 100;
  facts.context_length = 64;
  facts.temperature = 0.5;
  return facts;
}

Result<SamplingFields> read(const std::string& text, const SamplingDialect& dialect = kOpenAiDialect) {
  ASSIGN_OR_RETURN(const Json body, parse_body(text));
  return read_sampling(body, model(), dialect);
}

struct Sweep {
  const char* field;
  std::vector<std::string> inside, outside;
  std::string wanted;  // stands in every refusal of a value outside
};

void sweep(const std::vector<Sweep>& sweeps, const SamplingDialect& dialect) {
  for (const Sweep& each : sweeps) {
    const auto body = [&](const std::string& value) { return "{\"" + std::string(each.field) + "\":" + value + "}"; };
    for (const std::string& value : each.inside) {
      const auto out = read(body(value), dialect);
      EXPECT_TRUE(out.ok()) << body(value) << ": " << out.status().to_string();
    }
    EXPECT_TRUE(read(body("null"), dialect).ok()) << each.field;
    for (const std::string& value : each.outside) {
      const auto out = read(body(value), dialect);
      ASSERT_FALSE(out.ok()) << body(value);
      const ApiError error = field_error(out.status());
      EXPECT_EQ(error.http_status, 400);
      EXPECT_EQ(error.param, each.field) << error.message;
      EXPECT_NE(error.message.find(each.wanted), std::string::npos) << error.message;
    }
    for (const char* value : {"\"1\"", "true", "[]", "{}"}) {
      if (std::string(value) == "{}" && std::string(each.field) == "logit_bias") continue;
      EXPECT_FALSE(read(body(value), dialect).ok()) << body(value);
    }
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999"}) {
      EXPECT_FALSE(read(body(value), dialect).ok()) << body(value);
    }
  }
}

TEST(SamplingFields, NumbersAtTheirEdges) {
  sweep({{"temperature", {"0", "-0.0", "1e-308", "2", "2.0"}, {"-1e-9", "2.0000001", "1e308", "-1"}, "[0, 2]"},
         {"top_p", {"1e-9", "1"}, {"0", "-0.1", "1.0000001"}, "(0, 1]"},
         {"min_p", {"0", "1"}, {"-1e-9", "1.0000001"}, "[0, 1]"},
         {"top_k",
          {"-1", "0", "1", "100", "1073741824"},
          {"-2", "1073741825", "9223372036854775807"},
          "[-1, 1073741824]"},
         {"frequency_penalty", {"-2", "0", "2"}, {"-2.0000001", "2.1"}, "[-2, 2]"},
         {"presence_penalty", {"-2", "0", "2"}, {"-2.0000001", "2.1"}, "[-2, 2]"},
         {"repetition_penalty", {"1e-9", "1", "2"}, {"0", "-1", "2.1"}, "(0, 2]"},
         {"max_tokens", {"1", "2147483647"}, {"0", "-1", "2147483648"}, "[1, 2147483647]"},
         {"n_predict", {"-1", "1", "2147483647"}, {"0", "-2", "2147483648"}, "[1, 2147483647]"},
         {"min_tokens", {"0", "64"}, {"-1", "65"}, "[0, 64]"},
         {"n", {"1", "128"}, {"0", "-1", "129", "2147483648"}, "[1, 128]"}},
        kOpenAiDialect);
  sweep({{"temperature", {"0", "100"}, {"-1", "100.1"}, "[0, 100]"},
         {"max_new_tokens", {"0", "2147483647"}, {"-1", "2147483648"}, "[0, 2147483647]"},
         {"min_new_tokens", {"0", "128"}, {"-1", "129"}, "[0, 128]"}},
        kNativeDialect);
  // Numbers over 64 bits are no integers at all.
  for (const char* field : {"n", "seed", "max_tokens", "top_k"}) {
    for (const char* value : {"1e30", "1.5"}) {
      EXPECT_FALSE(read(fmt::format("{{\"{}\":{}}}", field, value)).ok()) << field << " " << value;
    }
  }
  for (const char* field : {"n", "max_tokens", "top_k"}) {
    EXPECT_FALSE(read(fmt::format("{{\"{}\":9223372036854775808}}", field)).ok()) << field;
  }
  // A seed is any 64 bits.
  const auto largest = read(R"({"seed":18446744073709551615})");
  EXPECT_TRUE(largest.ok() && largest->params.seed == UINT64_MAX);
  const auto beyond = read(R"({"seed":18446744073709551616})");
  EXPECT_NE(beyond.status().message().find("wanted an integer in [-2^63, 2^64)"), std::string::npos);
}

TEST(SamplingFields, ValuesArrive) {
  const auto out = read(R"({"frequency_penalty":-1.5,"presence_penalty":0.5,"repetition_penalty":1.25,"max_tokens":9,
    "min_tokens":9,"n":3,"seed":-1,"no_stop_trim":true,"stop_regex":["a+","b"],"logit_bias":{"7":-100,"0":1.5}})");
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  const wire::SamplingParams& params = out->params;
  EXPECT_EQ(params.frequency_penalty, -1.5);
  EXPECT_EQ(params.presence_penalty, 0.5);
  EXPECT_EQ(params.repetition_penalty, 1.25);
  EXPECT_EQ(params.min_tokens, 9);
  EXPECT_EQ(out->max_tokens, 9);
  EXPECT_EQ(out->n, 3);
  EXPECT_TRUE(out->seeded);
  EXPECT_EQ(params.seed, UINT64_MAX);
  EXPECT_TRUE(params.include_stop_str_in_output);
  EXPECT_EQ(params.stop_regex, (std::vector<std::string>{"a+", "b"}));
  EXPECT_EQ(params.logit_bias, (std::vector<wire::LogitBias>{{0, 1.5}, {7, -100}}));
  EXPECT_EQ(params.temperature, 0.5);  // the model's own
  EXPECT_EQ(read("{\"stop_regex\":\"x\"}")->params.stop_regex, std::vector<std::string>{"x"});
  EXPECT_EQ(read("{\"temperature\":1e-7}")->params.temperature, 0.0);
  EXPECT_FALSE(read("{}")->seeded);
}

// llama.cpp's name of max_tokens, where it wins too.
TEST(SamplingFields, NPredictBoundsATextOfOpenAisEndpoints) {
  EXPECT_EQ(read(R"({"n_predict":7})")->max_tokens, 7);
  EXPECT_EQ(read(R"({"n_predict":7,"max_tokens":9})")->max_tokens, 7);
  EXPECT_EQ(read(R"({"n_predict":null,"max_tokens":9})")->max_tokens, 9);
  SamplingDialect completions = kOpenAiDialect;
  completions.default_max_tokens = 16;
  EXPECT_FALSE(read(R"({"n_predict":-1})", completions)->max_tokens.has_value());
  EXPECT_EQ(read("{}", completions)->max_tokens, 16);
}

TEST(SamplingFields, TheNativeDialectHasOtherDefaults) {
  EXPECT_EQ(read("{}", kNativeDialect)->max_tokens, 128);
  EXPECT_FALSE(read(R"({"max_new_tokens":null})", kNativeDialect)->max_tokens.has_value());
  EXPECT_EQ(read(R"({"max_new_tokens":0})", kNativeDialect)->max_tokens, 0);
  EXPECT_EQ(read("{}", kNativeDialect)->params.temperature, 1.0);
  EXPECT_EQ(read(R"({"sampling_seed":5})", kNativeDialect)->params.seed, 5u);
  EXPECT_FALSE(read("{}")->max_tokens.has_value());
}

TEST(SamplingFields, Biases) {
  std::string many = "{\"logit_bias\":{";
  for (std::size_t i = 0; i <= wire::kMaxLogitBiases; ++i) many += fmt::format("{}\"{}\":1", i ? "," : "", i);
  many += "}}";
  const std::pair<std::string, const char*> refused[] = {
      {R"({"logit_bias":[1]})", "array"},
      {R"({"logit_bias":{"100":1}})", "[0, 100)"},
      {R"({"logit_bias":{"-1":1}})", "[0, 100)"},
      {R"({"logit_bias":{"05":1}})", "'05'"},
      {R"({"logit_bias":{"5 ":1}})", "'5 '"},
      {R"({"logit_bias":{"":1}})", "''"},
      {R"({"logit_bias":{"18446744073709551616":1}})", "[0, 100)"},
      {R"({"logit_bias":{"5":100.5}})", "[-100, 100]"},
      {R"({"logit_bias":{"5":-1e38}})", "[-100, 100]"},
      {R"({"logit_bias":{"5":"1"}})", "string"},
      {R"({"logit_bias":{"5":null}})", "null"},
      {many, "1025"},
  };
  for (const auto& [body, wanted] : refused) {
    const auto out = read(body);
    ASSERT_FALSE(out.ok()) << body.substr(0, 80);
    EXPECT_EQ(field_error(out.status()).param, "logit_bias");
    EXPECT_NE(out.status().message().find(wanted), std::string::npos) << out.status().message();
  }
  EXPECT_FALSE(read(R"({"logit_bias":{"5":1,"5":2}})").ok());
  EXPECT_TRUE(read(R"({"logit_bias":{}})").ok());
  EXPECT_TRUE(read(R"({"logit_bias":{"5":100,"99":-100}})").ok());
}

TEST(SamplingFields, StopPatterns) {
  for (const char* body : {R"({"stop_regex":""})", R"({"stop_regex":[""]})", R"({"stop_regex":"("})",
                           R"({"stop_regex":[1]})", R"({"stop_regex":{}})", R"({"stop_regex":"\\K"})"}) {
    const auto out = read(body);
    ASSERT_FALSE(out.ok()) << body;
    EXPECT_EQ(field_error(out.status()).param, "stop_regex") << out.status().message();
  }
  std::string many = R"({"stop_regex":["x")";
  for (std::size_t i = 0; i < wire::kMaxStopStrings; ++i) many += ",\"x\"";
  EXPECT_FALSE(read(many + "]}").ok());
  EXPECT_FALSE(read("{\"stop_regex\":\"" + std::string(wire::kMaxStopStringBytes + 1, 'x') + "\"}").ok());
  EXPECT_TRUE(read("{\"stop_regex\":\"[0-9]+\\\\.\"}").ok());
}

TEST(SamplingFields, LogprobsAreBoundedInAll) {
  wire::SamplingParams params;
  ModelFacts facts = model();
  facts.context_length = 131072;
  EXPECT_TRUE(check_logprob_volume(params, std::nullopt, 256, facts).ok());  // none asked for
  params.top_logprobs = 20;
  EXPECT_TRUE(check_logprob_volume(params, std::nullopt, 1, facts).ok());
  EXPECT_FALSE(check_logprob_volume(params, std::nullopt, 256, facts).ok());
  EXPECT_TRUE(check_logprob_volume(params, 100, 256, facts).ok());
  params.prompt_logprobs_from = 0;
  EXPECT_FALSE(check_logprob_volume(params, 100, 256, facts).ok());
}

TEST(Choices, SeedsAreTheGivenAndThenDerived) {
  SamplingFields sampling;
  sampling.seeded = true;
  sampling.params.seed = 42;
  const auto made = make_requests({TextPrompt{"a"}, TextPrompt{"b"}}, {&sampling, 1}, {}, 3);
  ASSERT_EQ(made.size(), 6u);
  EXPECT_EQ(made[0].sampling.seed, 42u);
  EXPECT_EQ(made[3].sampling.seed, 42u);  // a prompt of a batch gives what it gives alone
  for (std::size_t k : {1u, 2u}) {
    EXPECT_EQ(made[k].sampling.seed, seed_of_choice(42, k));
    EXPECT_EQ(made[3 + k].sampling.seed, made[k].sampling.seed);
  }
  std::set<uint64_t> seeds;
  for (std::size_t k = 0; k < 128; ++k) seeds.insert(seed_of_choice(42, k));
  EXPECT_EQ(seeds.size(), 128u);
  EXPECT_EQ(std::get<TextPrompt>(*made[2].prompt).text, "a");
  EXPECT_EQ(std::get<TextPrompt>(*made[5].prompt).text, "b");
  sampling.seeded = false;
  const auto drawn = make_requests({TextPrompt{"a"}, TextPrompt{"a"}}, {&sampling, 1}, {}, 2);
  seeds.clear();
  for (const GenerateRequest& request : drawn) seeds.insert(request.sampling.seed);
  EXPECT_EQ(seeds.size(), 4u);
}

TEST(RequestFields, AtTheirEdges) {
  const auto fields = [](const std::string& text) { return read_request_fields(*parse_body(text)); };
  EXPECT_EQ(fields("{}")->extra_key, "");
  EXPECT_EQ(fields(R"({"timeout_s":0.0001})")->timeout_ms, 1);
  EXPECT_EQ(fields(R"({"timeout_s":86400,"queue_timeout_s":1.5})")->queue_timeout_ms, 1500);
  EXPECT_EQ(fields(R"({"priority":-2147483648})")->priority, INT32_MIN);
  // No two different pairs give one key.
  EXPECT_NE(fields(R"({"cache_salt":"ab","extra_key":"c"})")->extra_key,
            fields(R"({"cache_salt":"a","extra_key":"bc"})")->extra_key);
  EXPECT_NE(fields(R"({"cache_salt":"a"})")->extra_key, fields(R"({"extra_key":"a"})")->extra_key);
  EXPECT_EQ(fields(R"({"cache_salt":""})")->extra_key, "");
  for (const char* body :
       {R"({"timeout_s":0})", R"({"timeout_s":-1})", R"({"timeout_s":86400.1})", R"({"timeout_s":"1"})",
        R"({"queue_timeout_s":0})", R"({"priority":2147483648})", R"({"priority":0.5})", R"({"extra_key":7})"}) {
    EXPECT_FALSE(fields(body).ok()) << body;
  }
  EXPECT_FALSE(fields("{\"extra_key\":\"" + std::string(wire::kMaxNameBytes + 1, 'x') + "\"}").ok());
}

}  // namespace
}  // namespace millrace::api
