#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/ebnf.h"
#include "grammar/grammar.h"
#include "grammar/json_numbers.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"
#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

const auto as_itself = [](const CharSet& set) { return chars(set); };

Result<std::shared_ptr<const Grammar>> of_regex(std::string_view pattern, RegexMatch match = RegexMatch::kFull) {
  ASSIGN_OR_RETURN(ExprPtr body, parse_regex(pattern, match, as_itself));
  return Grammar::compile({{body}, {"the pattern"}, {}});
}

Result<std::shared_ptr<const Grammar>> of_schema(std::string_view schema) {
  ASSIGN_OR_RETURN(const Rules rules, parse_json_schema(schema));
  return Grammar::compile(rules);
}

Result<std::shared_ptr<const Grammar>> of_ebnf(std::string_view source) {
  ASSIGN_OR_RETURN(const Rules rules, parse_ebnf(source));
  return Grammar::compile(rules);
}

bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  StateTable states(grammar);
  return states.can_end(states.step(states.start(), text));
}

void expect_texts(const Result<std::shared_ptr<const Grammar>>& grammar, const std::vector<std::string>& in,
                  const std::vector<std::string>& out) {
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const std::string& text : in) EXPECT_TRUE(accepts(*grammar, text)) << text;
  for (const std::string& text : out) EXPECT_FALSE(accepts(*grammar, text)) << text;
}

// ---- regular expressions -------------------------------------------------------------------------------------------

TEST(GrammarRegexTest, AcceptsWhatThePatternMatches) {
  expect_texts(of_regex("[0-9]{4}"), {"1234"}, {"", "123", "12345", "12a4"});
  expect_texts(of_regex("a|bc*?|(?:d|e)+"), {"a", "b", "bccc", "ded"}, {"", "ab", "f"});
  expect_texts(of_regex("^\\d+(\\.\\d{1,2})?$"), {"1", "12.34"}, {"1.", ".5", "1.234"});
  expect_texts(of_regex("[^a-c\\]]x."), {"dxq", "éx☃"}, {"axq", "]xq", "dx\n", "dx"});
  expect_texts(of_regex("\\u00e9\\x41\\u{1F600}"), {"éA😀"}, {"eA😀"});
  expect_texts(of_regex("a{2,}b{,3}"), {"aa", "aaabbb"}, {"a", "aabbbb"});
}

TEST(GrammarRegexTest, AnywhereIsAnywhere) {
  expect_texts(of_regex("b+", RegexMatch::kAnywhere), {"b", "abc", "\nb"}, {"", "ac"});
  expect_texts(of_regex("^b+", RegexMatch::kAnywhere), {"b", "bc"}, {"ab"});
  expect_texts(of_regex("^a|b$", RegexMatch::kAnywhere), {"ax", "xb"}, {"xa", "bx"});
}

TEST(GrammarRegexTest, RefusesWhatIsNoRegularLanguage) {
  for (const char* pattern : {"(?=a)b", "(?<!a)b", "\\bword", "(a)\\1", "\\p{L}", "a++", "[a", "(a", "a)", "*a",
                              "a{3,2}", "a{1,20000}", "[b-a]", "a^b", "a$b", "\\", "[[:alpha:]]", "\\u12"}) {
    EXPECT_FALSE(of_regex(pattern).ok()) << pattern;
  }
  EXPECT_EQ(of_regex("a(?=b)").status().message(),
            "the pattern has look-around at 4; wanted a regular expression of docs/structured-output.md");
}

// ---- EBNF ----------------------------------------------------------------------------------------------------------

TEST(GrammarEbnfTest, ReadsTheDialectOfGbnf) {
  expect_texts(of_ebnf("# a list\nroot  ::= \"yes\" | \"no\" | list\nlist ::= \"[\" item (\",\" item)* \"]\"\n"
                       "item ::= [a-z]{1,3} | \"\\x41\" | [^\"\\\\a-z]\n"),
               {"yes", "[a,bc,A]", "[!]"}, {"maybe", "[]", "[abcd]"});
  expect_texts(of_ebnf("root ::= \"(\" root? \")\""), {"()", "((()))"}, {"", "(()", "())"});
  expect_texts(of_ebnf("root ::=\n  \"a\"\n  | \"b\"\n"), {"a", "b"}, {"ab"});
}

TEST(GrammarEbnfTest, RefusesWhatCannotBeRead) {
  EXPECT_EQ(of_ebnf("root ::= thing").status().message(), "the grammar has no rule 'thing'; wanted one");
  EXPECT_EQ(of_ebnf("root ::= root \"a\" | \"b\"").status().message(),
            "rule 'root' is left-recursive; wanted a rule that reads a character before it calls itself");
  EXPECT_EQ(of_ebnf("root ::= \"a\" root").status().message(),
            "the grammar admits no text; wanted one that some text satisfies");
  for (const char* source :
       {"", "root = \"a\"", "root ::= \"a", "root ::= [a", "root ::= (\"a\"", "root ::= \"a\"\nroot ::= \"b\"",
        "root ::= \"a\"{x}", "root ::= \"\\q\"", "root ::= a\na ::= b?\nb ::= a"}) {
    EXPECT_FALSE(of_ebnf(source).ok()) << source;
  }
}

// ---- numbers -------------------------------------------------------------------------------------------------------

TEST(GrammarNumbersTest, IntegersBetweenAreThoseAndNoOthers) {
  const std::vector<std::optional<int64_t>> bounds{std::nullopt, -1234, -100, -99, -10, -1,  0, 1, 7,
                                                   10,           19,    99,   100, 250, 1000};
  const auto bound = [](const std::optional<int64_t>& b) {
    return b ? std::optional(NumberBound::of(std::to_string(*b), false)) : std::nullopt;
  };
  for (const auto& least : bounds) {
    for (const auto& most : bounds) {
      const auto grammar = Grammar::compile({{integers_between(bound(least), bound(most))}, {"n"}, {}});
      if (!grammar.ok()) {
        EXPECT_TRUE(least && most && *least > *most);
        continue;
      }
      StateTable states(*grammar);
      for (int64_t n = -1300; n <= 1300; ++n) {
        const bool wanted = (!least || n >= *least) && (!most || n <= *most);
        EXPECT_EQ(states.can_end(states.step(states.start(), std::to_string(n))), wanted)
            << n << " in " << least.value_or(-9999) << " to " << most.value_or(9999);
      }
      EXPECT_FALSE(states.can_end(states.step(states.start(), "007")));
    }
  }
}

TEST(GrammarNumbersTest, NumbersBetweenAreThoseAndNoOthers) {
  const std::vector<std::optional<double>> bounds{std::nullopt, -12.5, -1,  -0.25, 0,  0.05,
                                                  0.3,          1,     1.5, 1.75,  12, 100.125};
  std::vector<std::string> texts;
  for (int integer : {0, 1, 2, 11, 12, 13, 99, 100, 101}) {
    texts.push_back(std::to_string(integer));
    for (const char* fraction :
         {"0",  "00", "04", "05", "050", "051", "1",   "12", "125", "1250", "1251", "2",   "25", "26",
          "29", "3",  "30", "31", "5",   "50",  "500", "51", "7",   "74",   "75",   "750", "76", "9"}) {
      texts.push_back(std::to_string(integer) + "." + fraction);
    }
  }
  for (const auto& least : bounds) {
    for (const auto& most : bounds) {
      for (const bool exclusive : {false, true}) {
        const auto bound = [&](const std::optional<double>& b) {
          return b ? std::optional(NumberBound::of(fmt::format("{}", *b), exclusive)) : std::nullopt;
        };
        const auto grammar = Grammar::compile({{numbers_between(bound(least), bound(most))}, {"n"}, {}});
        if (!grammar.ok()) continue;  // an empty range; a text in it would fail below
        StateTable states(*grammar);
        for (const std::string& magnitude : texts) {
          for (const std::string& text : {magnitude, "-" + magnitude}) {
            const double n = std::stod(text);
            if (n == 0 && text[0] == '-') continue;  // -0 is left to either side
            const bool above = !least || (exclusive ? n > *least : n >= *least);
            const bool below = !most || (exclusive ? n < *most : n <= *most);
            EXPECT_EQ(states.can_end(states.step(states.start(), text)), above && below)
                << text << " in " << least.value_or(-9999) << " to " << most.value_or(9999) << " exclusive "
                << exclusive;
          }
        }
      }
    }
  }
}

// ---- JSON Schema ---------------------------------------------------------------------------------------------------

TEST(GrammarSchemaTest, ObjectsHaveTheirPropertiesInTheirSequence) {
  const auto grammar =
      of_schema(R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"integer","minimum":0}},
                                     "required":["city"],"additionalProperties":false})");
  expect_texts(grammar, {R"({"city":"Rom"})", R"({ "city": "a\"b\u00e9", "n": 12 })", "{\n  \"city\": \"\"\n}"},
               {"{}", R"({"n":1})", R"({"city":"a","n":-1})", R"({"city":"a","x":1})", R"({"n":1,"city":"a"})",
                R"({"city":"a",})", "{\"city\":\"a\nb\"}", R"({"city":"\ud800"})"});
}

TEST(GrammarSchemaTest, AdditionalPropertiesHaveOtherNames) {
  const auto grammar = of_schema(
      R"({"properties":{"ab":{"type":"null"},"ac":{"type":"null"}},"additionalProperties":{"type":"boolean"}})");
  expect_texts(grammar,
               {"{}", R"({"ab":null})", R"({"a":true})", R"({"ab":null,"abc":true,"":false})", R"({"x\u0062":true})"},
               {R"({"ab":true})", R"({"ac":false})", R"({"a":null})", R"({"\u0061b":true})"});
}

TEST(GrammarSchemaTest, ArraysKeepTheirBounds) {
  expect_texts(of_schema(R"({"type":"array","items":{"enum":[1,2]},"minItems":1,"maxItems":3})"),
               {"[1]", "[1, 2]", "[1,2,1]"}, {"[]", "[3]", "[1,1,1,1]", "[1,]"});
  expect_texts(of_schema(R"({"prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false,"minItems":1})"),
               {"[null]", "[null,true]"}, {"[]", "[true]", "[null,true,1]"});
  expect_texts(of_schema(R"({"type":"array","items":[{"type":"null"}],"additionalItems":{"type":"string"}})"),
               {"[]", "[null]", "[null,\"a\",\"b\"]"}, {"[\"a\"]", "[null,1]"});
}

TEST(GrammarSchemaTest, StringsKeepLengthsPatternsAndFormats) {
  expect_texts(of_schema(R"({"type":"string","minLength":2,"maxLength":3})"),
               {R"("ab")", R"("aé☃")", R"("\n\ud83d\ude00")"}, {R"("a")", R"("abcd")"});
  expect_texts(of_schema(R"({"type":"string","pattern":"^a\"b\\\\+$"})"), {R"("a\"b\\")", R"("a\"b\\\\")"},
               {R"("a"b\")", R"("ab")"});
  expect_texts(of_schema(R"({"type":"string","format":"date"})"), {R"("2024-02-29")", R"("2023-12-31")"},
               {R"("2023-02-29")", R"("2023-13-01")", R"("2023-1-1")"});
  expect_texts(of_schema(R"({"type":"string","format":"ipv6"})"),
               {R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")", R"("::ffff:1.2.3.4")"},
               {R"("1::2::3")", R"("1:2:3:4:5:6:7")", R"("12345::")"});
}

TEST(GrammarSchemaTest, PatternsLengthsAndFormatsHoldTogether) {
  expect_texts(of_schema(R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":3})"),
               {R"("ab")", R"("abc")"}, {R"("a")", R"("abcd")", R"("a1")"});
  expect_texts(of_schema(R"({"type":"string","format":"ipv4","pattern":"^10[.]"})"), {R"("10.0.0.1")"},
               {R"("11.0.0.1")", R"("10.0")"});
  expect_texts(of_schema(R"({"type":"string","pattern":"b","maxLength":2})"), {R"("b")", R"("éb")", R"("\nb")"},
               {R"("aab")", R"("aa")"});
}

TEST(GrammarSchemaTest, KeysHaveTheSchemasOfThePatternsThatTheyMatch) {
  const auto grammar = of_schema(R"({"type":"object","properties":{"ab":{"type":"integer"}},"required":["ac"],
      "patternProperties":{"^a":{"minimum":5},"c$":{"type":"integer"}},"additionalProperties":{"type":"null"}})");
  expect_texts(
      grammar, {R"({"ac":7})", R"({"ab":5,"ac":6,"xc":1,"ax":5.5,"zz":null})"},
      {"{}", R"({"ac":4})", R"({"ab":4,"ac":7})", R"({"ac":5.5})", R"({"ac":7,"xc":"a"})", R"({"ac":7,"zz":1})"});
  expect_texts(of_schema(R"({"patternProperties":{"^x-":true},"additionalProperties":false})"),
               {"{}", R"({"x-a":1,"x-":[]})"}, {R"({"y":1})"});
}

TEST(GrammarSchemaTest, ReferencesMayRecur) {
  const auto grammar =
      of_schema(R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
      "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})");
  expect_texts(grammar, {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
               {R"({"v":1})", R"({"v":1,"next":{"v":2}})"});
}

TEST(GrammarSchemaTest, KeywordsBesideEachOtherAreJoined) {
  expect_texts(of_schema(R"({"allOf":[{"type":"integer","minimum":3},{"type":"number","maximum":5}]})"), {"3", "5"},
               {"2", "6", "3.5"});
  expect_texts(
      of_schema(
          R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false,
                             "anyOf":[{"required":["a"]},{"required":["b"]}]})"),
      {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {"{}"});
  expect_texts(of_schema(R"({"type":["string","null"],"enum":["a",1,null]})"), {"\"a\"", "null"}, {"1"});
  expect_texts(of_schema(R"({"enum":["a","abc"],"minLength":2})"), {"\"abc\""}, {"\"a\""});
  expect_texts(of_schema(R"({"enum":["\u0001",{"\u0001x":1}]})"), {R"("\u0001")", R"({"\u0001x":1})"}, {R"("a")"});
  expect_texts(of_schema(R"({"type":"string","not":{"minLength":1e30}})"), {R"("")", R"("abc")"}, {"1"});
  expect_texts(of_schema(R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"}},"required":["k"]},
                                      {"type":"object","properties":{"k":{"const":"y"},"n":{"type":"null"}},"required":["k"]}]})"),
               {R"({"k":"x"})", R"({"k":"y","n":null})"}, {R"({"k":"z"})"});
}

TEST(GrammarSchemaTest, WhatDependsOnOtherKeywordsKeepsItsMeaningBesideOthers) {
  expect_texts(
      of_schema(R"({"type":"object","allOf":[{"patternProperties":{"^x":true}},{"additionalProperties":false}]})"),
      {"{}"}, {R"({"x":1})"});
  expect_texts(
      of_schema(R"({"type":"object","allOf":[{"patternProperties":{"^x":{"minimum":3}},"additionalProperties":false},
                                                      {"properties":{"xa":{"maximum":4}},"patternProperties":{"b$":{"type":"integer"}}}]})"),
      {R"({"xa":3.5,"xb":7})"}, {R"({"xa":5})", R"({"xb":7.5})", R"({"b":7})", R"({"xc":2})"});
  expect_texts(
      of_schema(R"({"type":"array","allOf":[{"prefixItems":[{"type":"null"}]},{"items":{"type":["null","string"]}}]})"),
      {"[]", "[null]", R"([null,"a"])"}, {R"(["a"])", "[null,1]"});
  expect_texts(of_schema(R"({"minimum":9007199254740993,"maximum":18446744073709551615,"type":"integer"})"),
               {"9007199254740993", "18446744073709551615"}, {"9007199254740992", "18446744073709551616"});
  EXPECT_FALSE(of_schema(R"({"allOf":[{"const":1,"enum":[1]},{"const":2}]})").ok());
}

TEST(GrammarSchemaTest, NegationsBecomeWhatIsLeft) {
  expect_texts(of_schema(R"({"type":"string","not":{"enum":["ab","c"]}})"), {R"("a")", R"("abc")", R"("")"},
               {R"("ab")", R"("c")", R"("\u0063")"});
  expect_texts(of_schema(R"({"type":"integer","not":{"enum":[3,5]},"minimum":2,"maximum":6})"), {"2", "4", "6"},
               {"3", "5"});
  expect_texts(of_schema(R"({"type":"string","not":{"pattern":"b"},"maxLength":2})"), {R"("ac")", R"("")"},
               {R"("ab")", R"("acd")"});
  expect_texts(of_schema(R"({"type":"object","properties":{"a":true,"b":true},"not":{"required":["a","b"]}})"),
               {"{}", R"({"a":1})", R"({"b":1})"}, {R"({"a":1,"b":2})"});
  expect_texts(of_schema(R"({"type":["integer","string"],"not":{"type":"string"}})"), {"1"}, {R"("a")"});
  expect_texts(
      of_schema(R"({"type":"object","properties":{"xa":true},"not":{"patternProperties":{"^x":{"type":"string"}}}})"),
      {R"({"xa":1})", R"({"y":"1","z":1,"xb":1})"}, {R"({"xa":"a"})", R"({"y":1})", R"({"xb":1,"xb":"1"})"});
  expect_texts(of_schema(R"({"not":{"not":{"type":"null"}}})"), {"null"}, {"1"});
}

TEST(GrammarSchemaTest, AlternativesThatOverlapAreHeldApart) {
  const auto either = of_schema(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
      "additionalProperties":false,"oneOf":[{"required":["a"]},{"required":["b"]}]})");
  expect_texts(either, {R"({"a":1})", R"({"b":1})"}, {"{}", R"({"a":1,"b":2})"});
  expect_texts(of_schema(R"({"oneOf":[{"type":"integer","minimum":3},{"type":"number","maximum":5}]})"),
               {"2", "2.5", "6"}, {"3", "4", "5"});
  expect_texts(
      of_schema(R"({"type":"object","oneOf":[{"additionalProperties":false,"properties":{"next":{"type":"null"}}},
      {"additionalProperties":false,"properties":{"last":{"type":"null"}}}]})"),
      {R"({"next":null})", R"({"last":null})"}, {"{}"});
}

// Thousands of alternatives, each of which would be compared with each.
TEST(GrammarSchemaTest, ManyAlternativesAreSeparatedByTheirValues) {
  constexpr int kMany = 1000;
  std::string values, kinds, ranges;
  for (int i = 0; i < kMany; ++i) {
    const char* comma = i == 0 ? "" : ",";
    values += fmt::format(R"({}{{"const":{}}})", comma, i);
    kinds += fmt::format(
        R"({}{{"type":"object","properties":{{"k":{{"const":{}}}}},"required":["k"],"additionalProperties":false}})",
        comma, i);
    ranges += fmt::format(R"({}{{"type":"integer","minimum":{}}})", comma, i);
  }
  expect_texts(of_schema(R"({"oneOf":[)" + values + "]}"), {"0", "999"}, {"1000", "\"1\""});
  expect_texts(of_schema(R"({"oneOf":[)" + kinds + "]}"), {R"({"k":0})", R"({"k":999})"}, {R"({"k":1000})", "{}"});
  const auto refused = of_schema(R"({"oneOf":[)" + ranges + "]}");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(
      refused.status().message(),
      "schema.oneOf: oneOf has 1000 schemas that are neither values nor separated by a required property; wanted at "
      "most 512");
  // A value that two of them have, and an enum that has one twice.
  expect_texts(of_schema(R"({"oneOf":[{"const":1},{"enum":[1,2]},{"const":3}]})"), {"2", "3"}, {"1"});
  expect_texts(of_schema(R"({"oneOf":[{"enum":[1,1]},{"enum":[2,2]}]})"), {"1", "2"}, {"3"});
}

TEST(GrammarSchemaTest, ManySchemasOfAllOfAreJoined) {
  std::string all, text;
  for (int i = 0; i < 200; ++i) {
    all += fmt::format(R"({}{{"properties":{{"p{}":{{"const":{}}}}},"required":["p{}"]}})", i == 0 ? "" : ",", i, i, i);
    text += fmt::format("{}\"p{}\":{}", i == 0 ? "" : ",", i, i);
  }
  const std::string schema = R"({"type":"object","additionalProperties":true,"allOf":[)" + all + "]}";
  expect_texts(of_schema(schema), {"{" + text + "}"}, {"{" + text.substr(7) + "}", "{}"});
}

TEST(GrammarSchemaTest, ConditionsAndDependenciesAreKept) {
  expect_texts(of_schema(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
      "if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"required":["b"]},"else":{"properties":{"b":false}}})"),
               {R"({"a":1,"b":2})", R"({"a":2})", "{}"}, {R"({"a":1})", R"({"a":2,"b":2})"});
  expect_texts(of_schema(R"({"type":"object","properties":{"a":true,"b":true},"dependencies":{"a":["b"]}})"),
               {R"({"a":1,"b":1})", R"({"b":1})"}, {R"({"a":1})"});
  expect_texts(of_schema(R"({"type":"object","propertyNames":{"maxLength":3,"not":{"const":"ab"}}})"), {R"({"abc":1})"},
               {R"({"abcd":1})", R"({"ab":1})"});
}

TEST(GrammarSchemaTest, CountsOfMembersItemsAndMultiplesAreKept) {
  const auto two = of_schema(R"({"type":"object","properties":{"a":true,"b":true,"c":true},"minProperties":2,
      "maxProperties":2,"additionalProperties":false})");
  expect_texts(two, {R"({"a":1,"b":2})", R"({"b":1,"c":2})"}, {R"({"a":1})", R"({"a":1,"b":1,"c":2})"});
  StateTable states(*two);
  EXPECT_EQ(states.step(states.start(), R"({"c)"), kDeadState);  // no second member could follow
  expect_texts(of_schema(R"({"type":"array","items":{"type":"integer"},"contains":{"const":3},"maxItems":3})"),
               {"[3]", "[1,2,3]"}, {"[]", "[1,2]", "[1,2,1,3]"});
  expect_texts(of_schema(R"({"type":"number","multipleOf":0.01,"minimum":1})"), {"1.25", "1.250", "17"},
               {"1.251", "0.5"});
  expect_texts(of_schema(R"({"type":"integer","multipleOf":7,"maximum":100})"), {"98", "-7", "0"}, {"99", "105"});
  expect_texts(of_schema(R"({"type":"string","pattern":"^(ab)+$","maxLength":60000,"minLength":3})"), {R"("abab")"},
               {R"("ab")", R"("aba")"});
}

// A key that is not named may stand twice, and is one property.
TEST(GrammarSchemaTest, RepeatedKeysDoNotCount) {
  expect_texts(of_schema(R"({"type":"object","minProperties":1,"maxProperties":3})"),
               {R"({"x":1})", R"({"x":1,"y":2,"z":3})"}, {"{}", R"({"w":0,"x":1,"y":2,"z":3})"});
  const std::string named = R"({"properties":{"a":true,"b":true},"required":["a"],"minProperties":)";
  expect_texts(of_schema(named + "2}"), {R"({"a":1,"b":2})", R"({"a":1,"x":2,"x":3})"}, {R"({"a":1})"});
  expect_texts(of_schema(named + "3}"), {R"({"a":1,"b":2,"x":3})", R"({"a":1,"b":2,"x":3,"y":4,"y":5})"},
               {R"({"a":1,"x":2,"x":3})", R"({"a":1,"b":2})"});
  expect_texts(of_schema(named + R"(3,"maxProperties":4})"), {R"({"a":1,"b":2,"x":3})"},
               {R"({"a":1,"x":2,"x":3,"x":4})", R"({"a":1,"b":2,"x":3,"x":4})"});
  EXPECT_EQ(of_schema(named + "4}").status().message(),
            "schema.minProperties 4 is not served; wanted at most 3, the named properties and one more: others may "
            "repeat a key");
  EXPECT_FALSE(of_schema(R"({"propertyNames":{"pattern":"^[ab]$"},"minProperties":2})").ok());
  expect_texts(of_schema(R"({"type":"object","not":{"additionalProperties":{"type":"string"}}})"),
               {R"({"x":1})", R"({"x":"1","x":1})"}, {"{}", R"({"x":1,"x":"1"})"});
}

// A double has lost its last digits (base/json.h).
TEST(GrammarSchemaTest, IntegersOverSixtyFourBitsAreNotRounded) {
  EXPECT_EQ(of_schema(R"({"properties":{"x":{"const":12345678901234567890123}}})").status().message(),
            "schema.properties.x.const has 1.2345678901234568e+22; wanted an integer of at most 64 bits");
  EXPECT_EQ(of_schema(R"({"enum":[1,[-9223372036854775809]]})").status().message(),
            "schema.enum has -9.223372036854776e+18; wanted an integer of at most 64 bits");
  expect_texts(of_schema(R"({"enum":[-9223372036854775808,18446744073709551615,1.5e18,1e-30]})"),
               {"-9223372036854775808", "18446744073709551615"}, {"-9223372036854775807"});
  // Bounds are moved inwards, by less than 1 in 10^15.
  expect_texts(of_schema(R"({"type":"integer","minimum":12345678901234567890123,"maximum":22345678901234567890123})"),
               {"12345678901234577890123", "22345678901234557890123"},
               {"12345678901234567890122", "12345678901234567889999", "22345678901234567890124"});
  expect_texts(of_schema(R"({"type":"integer","maximum":-12345678901234567890123})"), {"-12345678901234577890123"},
               {"-12345678901234567890122", "-12345678901234567889999"});
  EXPECT_TRUE(
      of_schema(R"({"type":"number","minimum":-1.7976931348623157e308,"maximum":1.7976931348623157e308})").ok());
}

TEST(GrammarSchemaTest, RefusesByNameWhatItCannotKeep) {
  const auto message = [](std::string_view schema) { return of_schema(schema).status().message(); };
  EXPECT_EQ(message(R"({"properties":{"x":{"unevaluatedItems":false}}})"),
            "schema.properties.x.unevaluatedItems is not served; wanted a keyword of docs/structured-output.md");
  EXPECT_EQ(message(R"({"type":"array","uniqueItems":true})"), "schema.uniqueItems is not served; wanted false");
  EXPECT_EQ(message(R"({"$ref":"#/$defs/x"})"),
            "$ref '#/$defs/x' names nothing in the schema; wanted a pointer to a part of it");
  EXPECT_EQ(message(R"({"$ref":"#"})"),
            "rule '#' is left-recursive; wanted a rule that reads a character before it calls itself");
  EXPECT_EQ(message("false"), "the grammar admits no text; wanted one that some text satisfies");
  for (const char* schema :
       {"", "[]", "1", R"({"type":"strange"})", R"x({"type":"string","pattern":"(?=a)"})x", R"({"oneOf":[{},{}]})",
        R"({"minLength":-1})", R"({"properties":[]})", R"({"multipleOf":0.30001})", R"({"\u0001each":[]})",
        R"({"items":[{"\u0001\u0073ome":[]}]})", R"({"format":"iri"})", R"({"$ref":"http://x/y"})",
        R"({"a":1,"a":2})"}) {
    EXPECT_FALSE(of_schema(schema).ok()) << schema;
  }
}

TEST(GrammarSchemaTest, BombsAreErrors) {
  std::string deep = "true";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_FALSE(of_schema(deep).ok());
  EXPECT_TRUE(of_schema(R"({"type":"array","minItems":100000,"items":{"type":"array","minItems":100000}})").ok());
  EXPECT_EQ(of_schema(R"({"pattern":"^((a{1000}){1000}){1000}$"})").status().code(), StatusCode::kTooLarge);
  std::string doubled = R"({"$defs":{"d0":{"type":"null"})";
  for (int i = 1; i < 40; ++i) {
    const std::string before = fmt::format(R"({{"$ref":"#/$defs/d{}"}})", i - 1);
    doubled += fmt::format(R"(,"d{}":{{"type":"array","prefixItems":[{},{}]}})", i, before, before);
  }
  EXPECT_TRUE(of_schema(doubled + R"(},"$ref":"#/$defs/d39"})").ok());  // shared, so it is small
}

// Each part of these is within its limit, and they held the compiling thread for half a minute, or needed gigabytes.
TEST(GrammarSchemaTest, AllPartsOfASchemaShareOneLimit) {
  std::string patterns, names, one_of_them, long_names;
  for (int i = 0; i < 64; ++i) {
    patterns += fmt::format(R"({}"^(a|b)*a(a|b){{8}}{}$":{{"minimum":{}}})", i == 0 ? "" : ",", i, i);
  }
  for (int i = 0; i < 1000; ++i) {
    names += fmt::format(R"({}"p{}":{{}})", i == 0 ? "" : ",", i);
    one_of_them += fmt::format(R"({}{{"required":["p{}"]}})", i == 0 ? "" : ",", i);
    if (i < 200) long_names += fmt::format(R"({}"{:x<500}":{{}})", i == 0 ? "" : ",", i);
  }
  for (const std::string& schema : {R"({"patternProperties":{)" + patterns + "}}",
                                    R"({"properties":{)" + names + R"(},"anyOf":[)" + one_of_them + "]}",
                                    R"({"properties":{)" + long_names + "}}"}) {
    const Status refused = of_schema(schema).status();
    EXPECT_EQ(refused.code(), StatusCode::kTooLarge);
    EXPECT_NE(refused.message().find("takes more than 20000000 steps to compile"), std::string::npos)
        << refused.message();
  }
  EXPECT_TRUE(of_schema(R"({"properties":{)" + names + R"(},"additionalProperties":false})").ok());
}

// Each of these overflowed the stack or took days.
TEST(GrammarSchemaTest, DeepAndEmptyRepetitionsEnd) {
  EXPECT_FALSE(of_regex("a" + std::string(200'000, '*')).ok());
  EXPECT_FALSE(of_regex("a{2}{3}").ok());
  EXPECT_FALSE(of_ebnf("root ::= \"a\"" + std::string(200'000, '*')).ok());
  std::string items = "{}";
  for (int i = 0; i < 80'000; ++i) items += ",{}";
  EXPECT_EQ(of_schema(R"({"type":"array","prefixItems":[)" + items + "]}").status().code(), StatusCode::kTooLarge);
  EXPECT_TRUE(of_schema(R"({"type":"array","prefixItems":[)" + items.substr(0, 3000) + "{}]}").ok());
  expect_texts(of_regex("((((|){9999}){9999}){9999}){9999}a"), {"a"}, {"", "aa"});
  expect_texts(of_regex("((((|){0,9999}){0,9999}){0,9999}){0,9999}a"), {"a"}, {"", "aa"});
  expect_texts(of_ebnf("root ::= \"a\" ((((\"\" | \"\"){9999}){9999}){9999}){9999}"), {"a"}, {"", "aa"});
}

TEST(GrammarSchemaTest, RecursiveAlternativesAreComparedInBoundedTime) {
  const auto node = [](const std::string& name) {
    std::string properties, required;
    for (char key = 'a'; key <= 'h'; ++key) {
      properties += fmt::format(R"({}"{}":{{"$ref":"#/$defs/{}"}})", key == 'a' ? "" : ",", key, name);
      required += fmt::format(R"({}"{}")", key == 'a' ? "" : ",", key);
    }
    return fmt::format(R"("{}":{{"type":"object","required":[{}],"properties":{{{}}}}})", name, required, properties);
  };
  const auto grammar = of_schema(R"({"$defs":{)" + node("A") + "," + node("B") +
                                 R"(},"oneOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]})");
  EXPECT_FALSE(grammar.ok()) << "what is not known to be disjoint is refused";
}

TEST(GrammarSchemaTest, ThePointOfAPatternIsThatOfEcma262) {
  expect_texts(of_schema(R"({"type":"string","pattern":"^.$"})"), {"\"a\"", "\"\\t\""},
               {R"("\n")", R"("\r")", R"("\u2028")", "\"\xE2\x80\xA8\"", "\"\xE2\x80\xA9\""});
  expect_texts(of_regex("."), {"\r", "\xE2\x80\xA8"}, {"\n"});  // of a request: Python's
}

}  // namespace
}  // namespace millrace::grammar
