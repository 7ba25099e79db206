#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace millrace::grammar {
namespace {

// A small vocabulary with what real ones have: single bytes, words, parts of characters, twins, a special token.
std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens{""};  // 0: special
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"{\"",
                           "\":",
                           "\": \"",
                           "\"}",
                           "\", \"",
                           "true",
                           "false",
                           "null",
                           " the",
                           "city",
                           "[]",
                           "]}",
                           "}}",
                           "\"]",
                           "12",
                           "0.5",
                           "-",
                           "é",
                           "☃",
                           "\xF0\x9F",
                           "\x98\x80",
                           "\xE2\x98",
                           "\\n",
                           "\\\"",
                           "\\u00",
                           "  ",
                           "\n\n",
                           "city",
                           "sixteen letters.",
                           "seventeen letters",
                           "the city\",",
                           "city\"}",
                           "cit\xC3",
                           "é\"",
                           "é☃\\n",
                           "☃\xF0\x9F",
                           "a\n",
                           "seventeen letters\"",
                           "seventeen letters\":"}) {
    tokens.emplace_back(word);
  }
  return tokens;
}

std::shared_ptr<const Grammar> of_schema(std::string_view schema) {
  return Grammar::compile(parse_json_schema(schema).value()).value();
}

// Whether a token may follow, byte by byte and without any table.
bool follows(const std::shared_ptr<const Grammar>& grammar, const std::string& text, const std::string& token) {
  StateTable states(grammar);
  return !token.empty() && states.step(states.start(), text + token) != kDeadState;
}

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"city":{"type":"string"},"n":{"type":"number","minimum":-1,"maximum":12.5}},"required":["city"]})",
    R"({"type":"array","items":{"type":"string","maxLength":4}})",
    R"({"type":"string","pattern":"^[é☃a-c]{2}$"})",
    R"({"type":"string","minLength":2,"maxLength":18})",
    R"({"type":"string","pattern":"^[^b]+$","maxLength":40})",
    R"({"type":"object","properties":{"a":true,"city":{"const":1}},"oneOf":[{"required":["a"]},{"required":["city"]}],"maxProperties":2})",
    "true",
    R"({"type":"object","properties":{"city":{"type":"string"},"é☃":{"const":1}},"additionalProperties":{"type":"integer"}})",
    R"({"type":"object","properties":{"ét":{"const":1}},"additionalProperties":{"type":"string","minLength":3}})",
    R"({"enum":["the city","☃","\n"]})"};

TEST(MatcherTest, MasksAreThoseOfTryingEveryToken) {
  const std::vector<std::string> tokens = vocabulary();
  const auto trie = TokenTrie::build(tokens).value();
  std::mt19937 random(7);
  for (const char* schema : kSchemas) {
    const auto grammar = of_schema(schema);
    const auto masks = std::make_shared<Masks>(grammar, trie);
    for (int round = 0; round < 6; ++round) {
      Matcher matcher(masks);
      std::vector<int32_t> read;
      std::string text;
      for (int step = 0; step < 25; ++step) {
        const TokenMask mask = matcher.mask(read, {}, {}).value();
        std::vector<int32_t> allowed;
        for (std::size_t id = 0; id < tokens.size(); ++id) {
          const bool one = allows(mask, static_cast<int32_t>(id));
          ASSERT_EQ(one, follows(grammar, text, tokens[id])) << schema << ": " << text << " + " << tokens[id];
          if (one) allowed.push_back(static_cast<int32_t>(id));
        }
        if (allowed.empty()) break;
        read.push_back(allowed[random() % allowed.size()]);
        text += tokens[static_cast<std::size_t>(read.back())];
      }
    }
  }
}

TEST(MatcherTest, EndTokensAreAllowedWhereATextMayEnd) {
  const auto trie = TokenTrie::build(vocabulary()).value();
  const auto grammar =
      Grammar::compile(
          {{parse_regex("ab?", RegexMatch::kFull, [](const CharSet& s) { return chars(s); }).value()}, {"r"}})
          .value();
  Matcher matcher(std::make_shared<Masks>(grammar, trie));
  const std::vector<int32_t> end{0};
  EXPECT_FALSE(allows(*matcher.mask({}, {}, end), 0));
  EXPECT_TRUE(allows(*matcher.mask({}, 'a' + 1, end), 0));
  EXPECT_TRUE(allows(*matcher.mask({}, 'a' + 1, end), 'b' + 1));
  std::vector<int32_t> read{'a' + 1};
  const TokenMask last = *matcher.mask(read, 'b' + 1, end);
  for (std::size_t id = 1; id < vocabulary().size(); ++id) EXPECT_FALSE(allows(last, static_cast<int32_t>(id)));
  read.push_back('b' + 1);
  EXPECT_EQ(matcher.mask(read, 'c' + 1, end).status().code(), StatusCode::kInternal);
}

TEST(MatcherTest, AMatcherGoesBackAndSharesItsMasks) {
  const auto trie = TokenTrie::build(vocabulary()).value();
  const auto masks = std::make_shared<Masks>(of_schema("true"), trie);
  Matcher one(masks), other(masks);
  const std::vector<int32_t> longer{'[' + 1, '1' + 1, ',' + 1}, shorter{'[' + 1};
  const TokenMask behind = *one.mask(longer, {}, {});
  EXPECT_EQ(*one.mask(shorter, {}, {}), *other.mask(shorter, {}, {}));
  EXPECT_EQ(*other.mask(longer, {}, {}), behind);
}

TEST(MatcherTest, AFullTableIsClearedAndChangesNothing) {
  const auto trie = TokenTrie::build(vocabulary()).value();
  const auto grammar = of_schema(R"({"type":"string","maxLength":9000})");
  const auto masks = std::make_shared<Masks>(grammar, trie);
  Matcher matcher(masks), fresh(std::make_shared<Masks>(grammar, trie));
  std::vector<int32_t> read{'"' + 1};
  const int32_t snowman = static_cast<int32_t>(1 + 256 + 18);
  ASSERT_EQ(vocabulary()[static_cast<std::size_t>(snowman)], "☃");
  for (int i = 0; i < 7000; ++i) read.push_back(snowman);
  const uint64_t before = masks->states().generation();
  const TokenMask mask = *matcher.mask(read, {}, {});
  EXPECT_GT(masks->states().generation(), before);
  EXPECT_LE(masks->states().state_count(), kGrowth * kMaxStates);
  for (std::size_t i = 0; i + 1 < read.size(); i += 100) {  // read in small parts: the same answers
    ASSERT_TRUE(fresh.mask(std::span(read).first(i), read[i], {}).ok());
  }
  EXPECT_EQ(*fresh.mask(read, {}, {}), mask);
}

// A character may be in any of the 90 repetitions, at any of its places: a state has 90 positions for each one read.
TEST(MatcherTest, WhatIsTooAmbiguousFailsAlone) {
  const auto trie = TokenTrie::build(vocabulary()).value();
  const auto grammar = Grammar::compile(parse_ebnf("root ::= ([a-z]{0,200}){90}").value()).value();
  const auto masks = std::make_shared<Masks>(grammar, trie);
  Matcher good(masks), bad(masks);
  const std::vector<int32_t> text(250, 'a' + 1);
  const auto beginning = std::span(text).first(20);
  const TokenMask mask = *good.mask(beginning, {}, {});
  EXPECT_EQ(bad.mask(text, {}, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*good.mask(beginning, {}, {}), mask);
  EXPECT_EQ(*bad.mask(beginning, {}, {}), mask);
}

// The place before the first character is one too; it was taken for one from which no text goes on.
TEST(MatcherTest, ATooLargeBeginningIsRefusedAsSuch) {
  const auto trie = TokenTrie::build(vocabulary()).value();
  const auto grammar = Grammar::compile(parse_ebnf("root ::= ([a-z ]?){9000} [0-9]").value()).value();
  Matcher matcher(std::make_shared<Masks>(grammar, trie));
  for (int i = 0; i < 2; ++i) {
    const Status status = matcher.mask({}, {}, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("positions at one place of a text"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace millrace::grammar
