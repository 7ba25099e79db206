// The tree that is built without a search, against nlohmann's own.
#include "base/ordered_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(OrderedJson, TheSameTreeAsNlohmanns) {
  for (const char* text :
       {R"({"z":1,"a":{"y":[1,-2,2.5,true,null,"x\u00e9"],"b":{}},"m":[],"k":[[{"q":[],"c":{"d":"e"}}],[]]})",
        R"([{"b":1,"a":2},{"a":1,"b":2}])", R"({"":{"":[{}]}})", "{}", "[]", " 7 ", "-1", "18446744073709551615", "1.0",
        "1e300", "\"x\"", "false", "null"}) {
    const OrderedJson wanted = OrderedJson::parse(text), got = parse_ordered_json(text);
    EXPECT_EQ(got, wanted) << text;
    EXPECT_EQ(got.dump(), wanted.dump()) << text;  // and with it the sequence of the keys
    EXPECT_EQ(got.type(), wanted.type()) << text;
  }
}

TEST(OrderedJsonDeathTest, UncheckedTextIsAProgrammerError) {
  for (const char* text : {"", "{", "[1,]", R"({"a":})", "1 2", "\"\xFF\"", "1e999"}) {
    EXPECT_DEATH(parse_ordered_json(text), "status.ok") << text;
  }
}

TEST(OrderedJson, TheTreeCanBeSearchedAndChanged) {
  OrderedJson object = parse_ordered_json(R"({"b":1,"a":[2]})");
  EXPECT_EQ(object["a"][0], 2);
  object["c"] = 3;
  object["b"] = 4;
  object.erase("a");
  EXPECT_EQ(object.dump(), R"({"b":4,"c":3})");
}

// With a search at each key this takes minutes, and as long where the entries are copied at each growth.
TEST(OrderedJson, ManyKeysTakeNoSearch) {
  constexpr int kKeys = 200'000;
  std::string text = R"({"first":[)";
  for (int i = 0; i < kKeys; ++i) text += (i > 0 ? "," : "") + std::to_string(i);
  text += "]";
  for (int i = kKeys; i > 0; --i) text += ",\"" + std::to_string(i) + "\":" + std::to_string(i);
  text += "}";
  const OrderedJson object = parse_ordered_json(text);
  ASSERT_EQ(object.size(), static_cast<std::size_t>(kKeys) + 1);
  EXPECT_EQ(object.dump(), text);
}

}  // namespace
}  // namespace millrace
