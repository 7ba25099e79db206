// Stop strings and patterns together against a model that looks at the whole output again after each character with
// Python's re (tests/oracles/text_stop_regex.py), wherever the output is cut.
#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json.h"

namespace millrace {
namespace {

struct Seen {
  std::string text;
  std::optional<std::string> matched;
  std::vector<std::string> emitted;
};

// Pushes `text` in chunks of 0 to `longest` bytes; characters may be cut.
Seen stream(StopMatcher matcher, std::string_view text, size_t longest, std::mt19937& random) {
  Seen seen;
  const auto take = [&](const StopMatcher::Output& out) {
    EXPECT_TRUE(out.status.ok()) << out.status.message();
    EXPECT_FALSE(seen.matched && (out.matched_text || !out.emit.empty())) << "output after the end";
    seen.text += out.emit;
    seen.emitted.push_back(out.emit);
    if (out.matched_text) seen.matched = out.matched_text;
  };
  while (!text.empty()) {
    const size_t size = std::min<size_t>(random() % (longest + 1), text.size());
    take(matcher.push(text.substr(0, size)));
    text.remove_prefix(size);
  }
  take(matcher.finish());
  return seen;
}

StopMatcher make(std::vector<std::string> stops, std::vector<std::string> patterns, bool include_stop = false) {
  auto matcher = StopMatcher::create(std::move(stops), std::move(patterns), include_stop);
  EXPECT_TRUE(matcher.ok()) << matcher.status().message();
  return std::move(matcher).value();
}

TEST(StopMatcherTest, EqualsALookAtTheOutputAfterEachCharacter) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/text/stop_regex.json");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  auto parsed = parse_json(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const Json& cases = *parsed;
  ASSERT_GT(cases.size(), 500u);
  std::mt19937 random(3);
  for (const auto& row : cases) {
    const auto text = row[0].get<std::string>();
    const auto wanted = row[4].get<std::string>();
    for (size_t longest : {1, 2, 3, 5, 9, 100}) {
      const Seen seen =
          stream(make(row[1].get<std::vector<std::string>>(), row[2].get<std::vector<std::string>>(), row[3]), text,
                 longest, random);
      ASSERT_EQ(seen.text, wanted) << text;
      ASSERT_EQ(seen.matched, row[5].is_null() ? std::nullopt : std::optional(row[5].get<std::string>())) << text;
      // Nothing is emitted that the whole output takes back: what is emitted early is a prefix of what is wanted.
      std::string so_far;
      for (const std::string& chunk : seen.emitted) {
        so_far += chunk;
        ASSERT_TRUE(wanted.starts_with(so_far)) << text;
      }
    }
  }
}

TEST(StopMatcherTest, HoldsOnlyWhatMayBecomeAMatch) {
  StopMatcher matcher = make({"STOP"}, {"User: ?[0-9]+;"});
  EXPECT_EQ(matcher.push("Hello U").emit, "Hello ");
  EXPECT_EQ(matcher.push("s, ST").emit, "Us, ");
  EXPECT_EQ(matcher.push("User:").emit, "ST");
  EXPECT_EQ(matcher.push(" 12").emit, "");
  EXPECT_EQ(matcher.push("x").emit, "User: 12x");
  EXPECT_EQ(matcher.push("User: 12").emit, "");
  const StopMatcher::Output out = matcher.push("; more");
  EXPECT_EQ(out.emit, "");
  EXPECT_EQ(out.matched_text, "User: ?[0-9]+;");
  EXPECT_EQ(matcher.push("more").emit, "");
  EXPECT_EQ(matcher.finish().emit, "");
}

TEST(StopMatcherTest, TheEndGivesWhatIsHeld) {
  StopMatcher matcher = make({"STOP"}, {"a+b"});
  EXPECT_EQ(matcher.push("xaaST\xE6\x97").emit, "xaa");
  EXPECT_EQ(matcher.finish().emit, "ST\xE6\x97");  // a character that never was whole
}

// Bytes that are no characters pass through unchanged; each stands for a character of its own.
TEST(StopMatcherTest, BrokenBytesPass) {
  std::mt19937 random(5);
  const std::string text = "a\xFFz\xE6\x97y\xC3\x28\x80 end STOP.";
  for (int round = 0; round < 50; ++round) {
    const Seen seen = stream(make({}, {"z..y", "S[A-Z]+\\."}), text, 4, random);
    EXPECT_EQ(seen.text, "a\xFF");
    EXPECT_EQ(seen.matched, "z..y");
    EXPECT_EQ(stream(make({}, {"S[A-Z]+\\."}), text, 4, random).text, text.substr(0, text.size() - 5));
  }
}

TEST(StopMatcherTest, WithoutPatternsItIsTheStopStrings) {
  std::mt19937 random(6);
  const Seen seen = stream(make({"b\x80", "cc"}, {}, true), "ab\x80z", 2, random);
  EXPECT_EQ(seen.text, "ab\x80");
  EXPECT_EQ(seen.matched, "b\x80");
  EXPECT_EQ(stream(make({"STOP"}, {}), "a ST", 3, random).text, "a ST");
  EXPECT_EQ(stream(make({}, {}), "anything", 3, random).text, "anything");
}

// The request ends with an error after the same character wherever the text is cut, and nothing hangs.
TEST(StopMatcherTest, APatternThatStepsBackForEverEndsTheRequest) {
  for (const char* pattern : {"(a+)+[bc]", "(a|aa)+[bc]", "(a*)*[bc]", "(?:a?){40}[bc]{40}", "(.*)*\\1[bc]"}) {
    std::optional<std::string> wanted;
    for (size_t cut : {1, 7, 1000, 10000}) {
      StopMatcher matcher = make({}, {pattern});
      const std::string text = "text so far " + std::string(10000, 'a');
      std::string seen;
      Status status;
      for (size_t at = 0; at < text.size() && status.ok(); at += cut) {
        const StopMatcher::Output out = matcher.push(text.substr(at, cut));
        seen += out.emit;
        status = out.status;
        EXPECT_FALSE(out.matched_text);
      }
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << pattern;
      EXPECT_NE(status.message().find(pattern), std::string::npos) << status.message();
      if (!wanted) wanted = seen;
      EXPECT_EQ(seen, *wanted) << pattern;
      EXPECT_EQ(matcher.push("b").emit, "");
      EXPECT_EQ(matcher.finish().emit, "");
    }
  }
}

}  // namespace
}  // namespace millrace
