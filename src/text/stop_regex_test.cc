// Long outputs: the window against PCRE2 over the whole text, and what is refused.
#include "text/stop_regex.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace millrace {
namespace {

using Match = StopRegexes::Match;

// After each character anew over the whole text, from the earliest place at which a match may start.
std::optional<Match> model(const std::string& pattern, const std::string& text, size_t first_size) {
  auto regex = Regex::compile_perl(pattern);
  EXPECT_TRUE(regex.ok());
  RegexScratch scratch;
  for (size_t size = first_size; size <= text.size(); ++size) {
    if (size < text.size() && utf8_is_continuation(text[size])) continue;
    size_t from = size > kMaxStopRegexMatchBytes ? size - kMaxStopRegexMatchBytes : 0;
    while (from < size && utf8_is_continuation(text[from])) ++from;
    uint64_t steps = 1'000'000'000;
    const Regex::Found found = regex->find(scratch, std::string_view(text).substr(0, size), from, false, steps);
    EXPECT_NE(found.verdict, Regex::Verdict::kGaveUp) << pattern;
    if (found.verdict == Regex::Verdict::kMatch) return Match{found.begin, found.end, 0};
  }
  return std::nullopt;
}

std::optional<Match> stream(const std::string& pattern, const std::string& text) {
  auto regexes = StopRegexes::create({pattern});
  EXPECT_TRUE(regexes.ok());
  size_t open = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_at(text, at).size_bytes;
    const auto match = regexes->push_character(std::string_view(text).substr(at, size));
    at += size;
    if (!match.ok()) ADD_FAILURE() << pattern << ": " << match.status().message();
    if (!match.ok()) return std::nullopt;
    if (*match) {
      EXPECT_GE((*match)->begin, open) << pattern << ": a match that starts in what was released";
      return *match;
    }
    EXPECT_GE(regexes->open_from(), open) << pattern;
    open = regexes->open_from();
    EXPECT_LE(open, at);
    EXPECT_LE(at - open, kMaxStopRegexMatchBytes);
  }
  return std::nullopt;
}

void expect_same(const std::string& pattern, const std::string& text, size_t first_size) {
  const auto wanted = model(pattern, text, first_size);
  const auto seen = stream(pattern, text);
  ASSERT_EQ(seen.has_value(), wanted.has_value()) << pattern;
  if (!seen) return;
  EXPECT_EQ(seen->begin, wanted->begin) << pattern;
  EXPECT_EQ(seen->end, wanted->end) << pattern;
}

// The match comes at the text's end, thousands of bytes after the beginning that ^ and \A mean.
TEST(StopRegexTest, LongOutputsEqualASearchOfAllText) {
  std::mt19937 random(9);
  for (const char* pattern :
       {"X[a-z]*Y", "(?s)<a>.*</a>", "^X", "\\AX", "(?<=^X)Y", "(?<=[a-z]{250})X", "(?<![a-z]{200}Z)XY", "\\bXY",
        "(?m)^Y", "(X|Z)[^Y]{3,}Y\\b", "X(?=Y)", "(Z.)\\1", "Y$", "é+X", "(?<=\\n.{100})X", "[^\\n]*XY"}) {
    for (int round = 0; round < 3; ++round) {
      std::string text;
      while (text.size() < 9000)
        text += random() % 60 == 0   ? "\n"
                : random() % 40 == 0 ? "é"
                                     : std::string(1, static_cast<char>('a' + random() % 26));
      const size_t filled = text.size();
      for (int i = 0; i < 400; ++i) text += std::string("XYZ<a>/\nqé")[random() % 10];
      // The last letters are cut out of a string with é in it: only whole characters may be pushed.
      text = utf8_lossy(text);
      expect_same(pattern, text, filled);
    }
  }
}

// A match may be kMaxStopRegexMatchBytes long and not longer.
TEST(StopRegexTest, AMatchStartsWithinTheWindow) {
  for (const char* filler : {"x", "é"}) {
    for (size_t extra : {0, 1, 2, 3}) {
      std::string text = "before <";
      while (text.size() < 7 + kMaxStopRegexMatchBytes - 3 + extra) text += filler;
      text += ">";
      const auto match = stream("<[^>]*>", text);
      EXPECT_EQ(match.has_value(), text.size() - 7 <= kMaxStopRegexMatchBytes) << text.size();
      if (match) {
        EXPECT_EQ(match->begin, 7u);
      }
    }
  }
}

// One open place for the whole output: the text is released once it is a window old, and nothing fails.
TEST(StopRegexTest, AnEndlessPartialMatchIsReleased) {
  EXPECT_FALSE(stream("<[^>]*>", "<" + std::string(20000, 'x') + ">"));
  EXPECT_FALSE(stream("(?s)X.*?[yz]", "X" + std::string(3 * kMaxStopRegexMatchBytes, 'x')));
}

// Whatever the patterns, the work for a character is bounded: those that need more end the request, and soon.
TEST(StopRegexTest, PatternsThatNeedTooManyStepsGiveUp) {
  struct Case {
    const char* pattern;
    std::string unit;
  };
  const Case cases[] = {{"(a+)+[bc]", "a"},         {"x*[yz]", "x"},          {"(?s)(?:[^~^]|q)*[~^]{1}", "xq"},
                        {"[^~^]++[~^]", "x\n"},     {"(?:x?){60}y", "x"},     {"(?=(x+x+)+[yz])x", "x"},
                        {"(?s)(x.*){3,}[~^]", "x"}, {"(.)(?=.*\\1\\1y)", "x"}};
  for (const auto& [pattern, unit] : cases) {
    auto regexes = StopRegexes::create(std::vector<std::string>(kMaxStopRegexes, pattern));
    ASSERT_TRUE(regexes.ok()) << pattern << ": " << regexes.status().message();
    Status status;
    for (int i = 0; status.ok() && i < 4000; ++i) {
      status = regexes->push_character(std::string_view(unit).substr(static_cast<size_t>(i) % unit.size(), 1)).status();
    }
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << pattern;
    EXPECT_NE(status.message().find("steps a character"), std::string::npos) << status.message();
  }
}

TEST(StopRegexTest, RefusalsNameWhatAndWhere) {
  const auto refused = [](const std::string& pattern, std::string_view part) {
    const Status status = check_stop_regex(pattern);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << pattern.substr(0, 80);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_FALSE(StopRegexes::create({"fine", pattern}).ok());
  };
  refused("", "empty");
  refused(std::string(kMaxStopRegexBytes + 1, 'x'), "has 1025 bytes; wanted at most 1024");
  refused("ab(c", "missing closing parenthesis (at byte 4 of 4)");
  refused("ab[c", "missing terminating ] for character class (at byte 4 of 4)");
  refused("a**b", "(at byte 2 of 4)");
  refused("x{2,1}", "(at byte");
  refused("a\xFF", "UTF-8");
  refused("foo\\Kbar", "\\K at byte 3");
  refused("[\\]]\\G", "\\G at byte 4");
  refused("a(*COMMIT)b", "(* at byte 1");
  refused("(*UTF)b", "(* at byte 0");
  refused("\\C", "(at byte");
  refused("(?<=a{256})b", "steps back 256 characters; wanted at most 255");
  refused("(?<=a+)b", "lookbehind assertion is not fixed length");
  refused("(?:(?:[a-cé]{1000}){100}){100}", "");  // compiles to too much, by PCRE2's limit or by ours
  refused(std::string(101, '(') + "a" + std::string(101, ')'), "nested");
  for (const char* fine :
       {"[(*]", "[]\\d(*]x", "[^](*]", "[[:alpha:](*]", "\\\\K", "\\(*", "(?<=a{255})b", "(?i)é", "(?P<n>x)(?P=n)"}) {
    EXPECT_TRUE(check_stop_regex(fine).ok()) << fine << ": " << check_stop_regex(fine).message();
  }
  EXPECT_TRUE(check_stop_regex(std::string(kMaxStopRegexBytes, 'x')).ok());
  EXPECT_TRUE(StopRegexes::create(std::vector<std::string>(kMaxStopRegexes, "x")).ok());
  EXPECT_FALSE(StopRegexes::create(std::vector<std::string>(kMaxStopRegexes + 1, "x")).ok());
}

}  // namespace
}  // namespace millrace
