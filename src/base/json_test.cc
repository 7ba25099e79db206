// The bounded parser and the strict getters. Expected values are those of RFC 8259 and of the Unicode standard's table
// of well-formed UTF-8 (3-7).
#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
}

TEST(Json, ParsesWhatIsJson) {
  auto json = parse_json(R"( {"a":[1,-2,2.5,true,null,"x\u00e9\ud83d\ude00"],"b":{}} )");
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)["a"][0], 1);
  EXPECT_EQ((*json)["a"][1], -2);
  EXPECT_EQ((*json)["a"][2], 2.5);
  EXPECT_EQ((*json)["a"][5], "x\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_TRUE((*json)["b"].is_object());
  for (const char* scalar : {"1", "null", "\"x\"", "false"}) EXPECT_TRUE(parse_json(scalar).ok()) << scalar;
}

TEST(Json, RefusesWhatIsNot) {
  const std::string cases[] = {"",
                               " ",
                               "{",
                               "[1,]",
                               "{\"a\":}",
                               "{\"a\" 1}",
                               "{a:1}",
                               "01",
                               "1.",
                               ".5",
                               "+1",
                               "1e",
                               "NaN",
                               "Infinity",
                               "nul",
                               "'x'",
                               "\"x",
                               "\"\\x\"",
                               "\"\\u12\"",
                               "\"\\ud800\"",
                               "\"\\udc00\\ud800\"",
                               "1 2",
                               "{} {}",
                               "[1] x",
                               "\"a\nb\"",
                               "// c\n1",
                               "\"\xC0\x80\"",
                               "\"\xED\xA0\x80\"",
                               "\"\xFF\"",
                               "\"\xE4\xBD\"",
                               "\"\xF5\x80\x80\x80\"",
                               "1e999",
                               std::string("1\0", 2),
                               std::string("\"\0\"", 3)};
  for (const std::string& text : cases) {
    const auto json = parse_json(text);
    EXPECT_FALSE(json.ok()) << text;
    if (!json.ok()) {
      EXPECT_EQ(json.status().code(), StatusCode::kInvalidArgument) << text;
    }
  }
}

TEST(Json, ErrorsNameThePositionAndNeverEcho) {
  const auto json = parse_json(R"({"password": "hunter2" "x"})");
  ASSERT_FALSE(json.ok());
  EXPECT_NE(json.status().message().find("byte "), std::string::npos) << json.status().message();
  EXPECT_EQ(json.status().message().find("hunter2"), std::string::npos);
  EXPECT_EQ(json.status().message().find("password"), std::string::npos);
}

TEST(Json, DepthIsBounded) {
  EXPECT_TRUE(parse_json(nested(kJsonMaxDepth)).ok());
  const auto deeper = parse_json(nested(kJsonMaxDepth + 1));
  ASSERT_FALSE(deeper.ok());
  EXPECT_NE(deeper.status().message().find("64"), std::string::npos) << deeper.status().message();
  EXPECT_FALSE(parse_json(std::string(1'000'000, '[')).ok());
  EXPECT_TRUE(parse_json(nested(3), 3).ok());
  EXPECT_FALSE(parse_json(nested(4), 3).ok());
  EXPECT_TRUE(parse_json("[[],[],[[]]]", 3).ok());  // depth, not count
}

TEST(Json, NothingHidesBehindANul) {
  EXPECT_FALSE(parse_json(std::string_view("{\"a\":1}\0{\"b\":2}", 16)).ok());
  EXPECT_FALSE(parse_json(std::string_view("{}\0", 3)).ok());
  EXPECT_FALSE(parse_json(std::string_view("\0{}", 3)).ok());
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_FALSE(parse_json(R"({"a":1,"a":2})").ok());
  EXPECT_FALSE(parse_json(R"({"x":{"a":1,"b":2,"\u0061":3}})").ok());  // the same key, spelt otherwise
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})").ok());
  EXPECT_EQ(parse_json(R"([{"aé":1,"aé":"secret"}])").status().message(),
            "duplicate key 'aé'; wanted each key once in an object");
  const std::string key(100, 'k');
  EXPECT_EQ(parse_json("{\"" + key + "\":1,\"" + key + "\":1}").status().message(),
            "duplicate key '" + key.substr(0, 64) + "'; wanted each key once in an object");
}

TEST(Json, GettersTakeTheirTypeOnly) {
  const Json object = *parse_json(
      R"({"b":true,"i":-3,"u":18446744073709551615,"d":1.5,"e":2.0,"s":"x","a":[],"o":{},"n":null,"big":9223372036854775807})");
  bool flag = false;
  EXPECT_TRUE(json_read(object, "b", flag).ok());
  EXPECT_TRUE(flag);
  int64_t integer = 9;
  EXPECT_TRUE(json_read(object, "i", integer).ok());
  EXPECT_EQ(integer, -3);
  EXPECT_TRUE(json_read(object, "big", integer).ok());
  EXPECT_EQ(integer, INT64_MAX);
  double number = 0;
  EXPECT_TRUE(json_read(object, "d", number).ok());
  EXPECT_EQ(number, 1.5);
  EXPECT_TRUE(json_read(object, "i", number).ok());
  EXPECT_EQ(number, -3);
  std::string text;
  EXPECT_TRUE(json_read(object, "s", text).ok());
  EXPECT_EQ(text, "x");

  integer = 9;
  for (const char* key : {"b", "u", "d", "e", "s", "a", "o"}) {
    const Status status = json_read(object, key, integer);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << key;
    EXPECT_TRUE(status.message().starts_with(std::string(key) + " is ")) << status.message();
    EXPECT_NE(status.message().find("wanted an integer"), std::string::npos) << status.message();
  }
  EXPECT_EQ(integer, 9);
  for (const char* key : {"i", "s", "a"}) EXPECT_FALSE(json_read(object, key, flag).ok()) << key;
  for (const char* key : {"b", "s", "o"}) EXPECT_FALSE(json_read(object, key, number).ok()) << key;
  for (const char* key : {"b", "i", "d", "a"}) EXPECT_FALSE(json_read(object, key, text).ok()) << key;
}

TEST(Json, AbsentAndNullLeaveTheDefault) {
  const Json object = *parse_json(R"({"n":null})");
  int64_t integer = 9;
  std::string text = "kept";
  for (const char* key : {"n", "absent"}) {
    EXPECT_TRUE(json_read(object, key, integer).ok());
    EXPECT_TRUE(json_read(object, key, text).ok());
    EXPECT_EQ(json_find(object, key), nullptr);
  }
  EXPECT_EQ(integer, 9);
  EXPECT_EQ(text, "kept");
}

TEST(Json, TypeNames) {
  const Json all = *parse_json(R"([null,true,-1,1,1.0,"",[],{}])");
  const std::string_view names[] = {"null", "boolean", "integer", "integer", "number", "string", "array", "object"};
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(json_type_name(all[i]), names[i]);
}

TEST(Json, StringsAreEscaped) {
  EXPECT_EQ(json_quoted("plain"), "\"plain\"");
  EXPECT_EQ(json_quoted("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(json_quoted(std::string_view("\0\x1F", 2)), "\"\\u0000\\u001f\"");
  EXPECT_EQ(json_quoted("\xC3\xA9\xF0\x9F\x98\x80"), "\"\xC3\xA9\xF0\x9F\x98\x80\"");
}

TEST(Json, BrokenUtf8BecomesReplacementCharacters) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(json_quoted("a\xFF"
                        "b"),
            "\"a" + mark + "b\"");
  EXPECT_EQ(json_quoted("\xC0\xAF"), "\"" + mark + mark + "\"");
  EXPECT_EQ(json_quoted("\xED\xA0\x80"), "\"" + mark + mark + mark + "\"");  // a surrogate
  EXPECT_EQ(json_quoted("\xF4\x90\x80\x80"), "\"" + mark + mark + mark + mark + "\"");
  EXPECT_EQ(json_quoted("\xF4\x8F\xBF\xBF"), "\"\xF4\x8F\xBF\xBF\"");  // U+10FFFF, the last one
}

// Every string of two bytes comes out as JSON that another parser (nlohmann's own, strict in UTF-8) accepts; and what
// was valid comes back unchanged.
TEST(Json, EveryTwoByteStringSurvives) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text{static_cast<char>(first), static_cast<char>(second)};
      const Json back = Json::parse(json_quoted(text), nullptr, false);
      ASSERT_TRUE(back.is_string()) << first << " " << second;
      if (first < 0x80 && second < 0x80) {
        ASSERT_EQ(back.get<std::string>(), text);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
