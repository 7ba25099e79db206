// The lines that a follower of the log gets.
#include "base/log_tail.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace millrace {
namespace {

class LogTailTest : public ::testing::Test {
 protected:
  void SetUp() override { log_init("test", LogLevel::kInfo); }
};

TEST_F(LogTailTest, NothingIsKeptWithoutAFollower) {
  LOG_INFO("before");
  const LogFollower follower;
  EXPECT_TRUE(follower.lines().empty());
}

TEST_F(LogTailTest, TheLastLinesAreKeptInSequence) {
  const LogFollower follower;
  LOG_DEBUG("not of this level");
  for (std::size_t i = 0; i < kMaxLogTailLines + 7; ++i) LOG_WARNING("line {}", i);
  const auto lines = follower.lines();
  ASSERT_EQ(lines.size(), kMaxLogTailLines);
  EXPECT_EQ(lines.front().text, "line 7");
  for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i].number, lines[i - 1].number + 1);
  EXPECT_EQ(lines.back().level, LogLevel::kWarning);
  EXPECT_GT(lines.back().unix_ms, 0);
}

TEST_F(LogTailTest, ALineIsOneLineOfCompleteCharactersOfALimitedLength) {
  const LogFollower follower;
  LOG_INFO("a\nb\x1b[31m");
  LOG_INFO("{}é and more", std::string(kMaxLogTailBytes - 1, 'x'));
  const auto lines = follower.lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "a\\x0ab\\x1b[31m");
  EXPECT_EQ(lines[1].text, std::string(kMaxLogTailBytes - 1, 'x'));
}

TEST_F(LogTailTest, TwoFollowersSeeTheSameAndTheLinesGoWithTheLast) {
  auto first = std::make_optional<LogFollower>();
  const LogFollower* const kept = &*first;
  auto second = std::make_optional<LogFollower>();
  LOG_ERROR("seen by both");
  EXPECT_EQ(second->lines().size(), 1u);
  second.reset();
  EXPECT_EQ(kept->lines().size(), 1u);
  first.reset();
  const LogFollower third;
  EXPECT_TRUE(third.lines().empty());
}

TEST_F(LogTailTest, ALeaseKeepsWhatComesUntilItIsOver) {
  LOG_INFO("before");
  EXPECT_TRUE(leased_log_lines(600'000).empty());
  LOG_INFO("within");
  {
    const LogFollower follower;
    EXPECT_EQ(follower.lines().size(), 1u);
  }
  const auto lines = leased_log_lines(0);  // the lease ends now
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].text, "within");
  LOG_INFO("behind");
  EXPECT_TRUE(leased_log_lines(0).empty());
}

}  // namespace
}  // namespace millrace
