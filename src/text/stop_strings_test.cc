// The streaming matcher against a plain search of the whole text, over random texts and random cuts.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

namespace millrace {
namespace {

struct Wanted {
  std::string text;
  std::optional<size_t> index;
};

// The match that ends first, the longest of those; found by looking at every end.
Wanted model(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (!best || stop.size() > stops[*best].size()) best = i;
    }
    if (best) return {text.substr(0, include_stop ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopStringsTest, EqualsASearchOfTheCompleteText) {
  std::mt19937 random(7);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  size_t matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(7);
    const std::string text = word(30);
    const bool include_stop = random() % 2 == 0;
    const Wanted wanted = model(text, stops, include_stop);
    auto matcher = StopStrings::create(stops, include_stop);
    ASSERT_TRUE(matcher.ok());
    std::string emitted;
    bool matched = false;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(random() % 5, text.size() - at);
      const StopStrings::Output out = matcher->push(text.substr(at, size));
      at += size;
      emitted += out.emit;
      if (out.matched) {
        EXPECT_FALSE(matched);
        matched = true;
        EXPECT_EQ(stops[out.matched_index], stops[*wanted.index]);
      }
      // Nothing leaves that the whole text would take back.
      ASSERT_TRUE(wanted.text.starts_with(emitted)) << text;
    }
    emitted += matcher->finish();
    matches += matched;
    ASSERT_EQ(emitted, wanted.text) << text;
    ASSERT_EQ(matched, wanted.index.has_value());
  }
  EXPECT_GT(matches, 1000u);
}

TEST(StopStringsTest, HoldsOnlyWhatMayBecomeAStop) {
  auto matcher = StopStrings::create({"</answer>", "\n\nUser:"}, false);
  ASSERT_TRUE(matcher.ok());
  EXPECT_EQ(matcher->push("Hello <").emit, "Hello ");
  EXPECT_EQ(matcher->push("b>\n").emit, "<b>");
  EXPECT_EQ(matcher->push("\nUse").emit, "");
  EXPECT_EQ(matcher->push("less").emit, "\n\nUseless");
  const StopStrings::Output out = matcher->push(" x</answer> more");
  EXPECT_EQ(out.emit, " x");
  EXPECT_TRUE(out.matched);
  EXPECT_EQ(out.matched_index, 0u);
  EXPECT_EQ(matcher->push("more").emit, "");
  EXPECT_EQ(matcher->finish(), "");
}

// Patterns that begin, end and repeat alike, as long and as many as they may be.
TEST(StopStringsTest, TheLargestSetsEqualASearchOfTheCompleteText) {
  std::mt19937 random(8);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < kMaxStopStrings; ++i) {
      std::string stop(kMaxStopStringBytes - random() % 3, 'a');
      for (size_t left = random() % 4; left > 0; --left) stop[random() % stop.size()] = 'b';
      stops.push_back(std::move(stop));
    }
    std::string text(3 * kMaxStopStringBytes, 'a');
    for (size_t left = 3 + random() % 6; left > 0; --left) text[random() % text.size()] = 'b';
    text += stops[random() % stops.size()];
    const bool include_stop = random() % 2 == 0;
    const Wanted wanted = model(text, stops, include_stop);
    ASSERT_TRUE(wanted.index);
    auto matcher = StopStrings::create(stops, include_stop);
    ASSERT_TRUE(matcher.ok());
    EXPECT_LE(matcher->nodes(), kMaxStopStrings * kMaxStopStringBytes + 1);
    std::string emitted;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(random() % 300, text.size() - at);
      const StopStrings::Output out = matcher->push(std::string_view(text).substr(at, size));
      at += size;
      emitted += out.emit;
      ASSERT_TRUE(wanted.text.starts_with(emitted));
      if (out.matched) {
        EXPECT_EQ(stops[out.matched_index], stops[*wanted.index]);
        break;
      }
      EXPECT_LT(at - emitted.size(), kMaxStopStringBytes);
    }
    EXPECT_TRUE(matcher->matched());
    EXPECT_EQ(emitted, wanted.text);
  }
}

TEST(StopStringsTest, RefusesWhatIsOutOfBounds) {
  EXPECT_EQ(StopStrings::create({""}, false).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(StopStrings::create(std::vector<std::string>(kMaxStopStrings + 1, "x"), false).ok());
  EXPECT_FALSE(StopStrings::create({std::string(kMaxStopStringBytes + 1, 'x')}, false).ok());
  EXPECT_TRUE(StopStrings::create({std::string(kMaxStopStringBytes, 'x')}, false).ok());
}

}  // namespace
}  // namespace millrace
