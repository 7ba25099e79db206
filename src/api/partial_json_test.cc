// A document that was cut off at any byte is the nearest complete one.
#include "api/partial_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include "base/json.h"

namespace millrace::api {
namespace {

TEST(PartialJson, IsTheNearestCompleteDocument) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "{}"},
      {"{", "{}"},
      {R"({"a)", "{}"},
      {R"({"a":)", "{}"},
      {R"({"a": "b)", "{}"},
      {R"({"a": "b")", R"({"a": "b"})"},
      {R"({"a": "b", "c)", R"({"a": "b"})"},
      {R"({"a": "}\"]", "c": [1, 2)", R"({"a": "}\"]", "c": [1]})"},
      {R"({"a": 12)", "{}"},
      {R"({"a": 12,)", R"({"a": 12})"},
      {R"({"a": [{"b": tru)", R"({"a": [{}]})"},
      {R"({"a": [{"b": true}, )", R"({"a": [{"b": true}]})"},
      {R"({"a": {"b": null }, "c": -1.5e3 )", R"({"a": {"b": null }})"},
      {R"({"a": 1} )", R"({"a": 1})"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_EQ(complete_json(text), wanted) << text;
}

// At every cut it is an object, and what it has is in the complete one.
TEST(PartialJson, AnyCutIsAnObject) {
  const std::string text =
      R"({"city": "Z\u00fcrich \"x\\", "days": [1, -2.5, {"a": [], "b": {}}], "deep": {"k": [[true, false], null]}, "n": 7})";
  EXPECT_EQ(complete_json(text), text);
  const Json all = Json::parse(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Result<Json> cut = parse_json(complete_json(text.substr(0, i)));
    ASSERT_TRUE(cut.ok() && cut->is_object()) << text.substr(0, i);
    for (const auto& [key, value] : cut->items()) {
      ASSERT_TRUE(all.contains(key)) << key;
      EXPECT_EQ(value.type(), all[key].type());
    }
  }
}

}  // namespace
}  // namespace millrace::api
