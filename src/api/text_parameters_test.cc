// Which parameters are texts, by the schemas that clients send: pydantic's and zod's forms of what may be left out.
#include "api/text_parameters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "wire/output_parsing.h"

namespace millrace::api {
namespace {

// "text", "text or null", "no text", or "anything": of one parameter of this schema.
std::string kind_of(const std::string& schema) {
  const auto tools = parse_json(
      R"([{"function":{"name":"f","parameters":{"type":"object","properties":{"a":)" + schema +
      R"(},"$defs":{"S":{"type":"string"},"E":{"enum":["x","y"]},"N":{"type":"number"},"R":{"$ref":"#/$defs/R"}}}}}])");
  const auto found = find_text_parameters(*tools);
  if (!found.ok() || found->empty()) return "anything";
  if (found->front() == wire::text_parameter("f", "a", wire::ParameterKind::kNoText)) return "no text";
  return found->front() == wire::text_parameter("f", "a") ? "text" : "text or null";
}

TEST(TextParameters, ByTheSchema) {
  for (const char* schema :
       {R"({"type":"string"})", R"({"enum":["a","b"]})", R"({"const":"a"})", R"({"$ref":"#/$defs/S"})",
        R"({"allOf":[{"$ref":"#/$defs/E"}],"description":"d"})", R"({"anyOf":[{"type":"string"},{"enum":["1"]}]})",
        R"({"type":"string","enum":["1","2"]})"}) {
    EXPECT_EQ(kind_of(schema), "text") << schema;
  }
  for (const char* schema :
       {R"({"anyOf":[{"type":"string"},{"type":"null"}],"default":null})", R"({"type":["string","null"]})",
        R"({"enum":["a",null]})", R"({"oneOf":[{"$ref":"#/$defs/S"},{"const":null}]})"}) {
    EXPECT_EQ(kind_of(schema), "text or null") << schema;
  }
  for (const char* schema :
       {R"({"type":"boolean"})", R"({"type":["integer","null"]})", R"({"type":"null"})", R"({"enum":[true,1]})",
        R"({"type":"array","items":{"type":"string"}})", R"({"anyOf":[{"type":"object"},{"type":"null"}]})"}) {
    EXPECT_EQ(kind_of(schema), "no text") << schema;
  }
  for (const char* schema :
       {"{}", "true", R"({"type":"integer"})", R"({"type":["string","integer"]})", R"({"enum":["a",1]})",
        R"({"anyOf":[{"type":"string"},{}]})", R"({"$ref":"#/$defs/N"})", R"({"$ref":"#/$defs/none"})",
        R"({"$ref":"#/$defs/R"})", R"({"$ref":"x.json"})", R"({"$ref":"#/~"})", R"({"type":["string","boolean"]})"}) {
    EXPECT_EQ(kind_of(schema), "anything") << schema;
  }
}

}  // namespace
}  // namespace millrace::api
