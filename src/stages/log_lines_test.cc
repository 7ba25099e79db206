// The log of a process as its stages send it to the server.
#include "stages/log_lines.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace millrace {
namespace {

TEST(LogLines, WhatWasLoggedSinceTheFirstQuestionComesBack) {
  log_init("test", LogLevel::kInfo);
  LOG_INFO("before the first question");
  ASSERT_TRUE(parse_log_lines(log_lines_json("another")).ok());
  LOG_WARNING("\"quoted\" and\nbroken, with é");
  LOG_ERROR("{}", std::string(1000, 'x'));
  for (int asked = 0; asked < 2; ++asked) {
    const auto log = parse_log_lines(log_lines_json("another"));
    ASSERT_TRUE(log.ok()) << log.status().message();
    EXPECT_EQ(log->process, log_process());
    ASSERT_EQ(log->lines.size(), 2u);
    EXPECT_EQ(log->lines[0].text, "\"quoted\" and\\x0abroken, with é");
    EXPECT_EQ(log->lines[0].level, LogLevel::kWarning);
    EXPECT_GT(log->lines[0].unix_ms, 1'600'000'000'000);
    EXPECT_EQ(log->lines[1].text, std::string(kMaxLogTailBytes, 'x'));
    EXPECT_EQ(log->lines[1].number, log->lines[0].number + 1);
  }
}

TEST(LogLines, AProcessThatAsksItselfKeepsNothing) {
  log_init("test", LogLevel::kInfo);
  (void)leased_log_lines(0);
  ASSERT_TRUE(parse_log_lines(log_lines_json(log_process())).ok());
  LOG_INFO("kept for no one");
  EXPECT_TRUE(leased_log_lines(0).empty());
}

TEST(LogLines, AReplyOfAnotherProgramIsBounded) {
  const std::string line = R"([1,1700000000000,1,"a\u001b[31m)" + std::string(5000, 'y') + "\"]";
  const auto log = parse_log_lines(R"({"process":"7","lines":[)" + line + "]}");
  ASSERT_TRUE(log.ok()) << log.status().message();
  EXPECT_EQ(log->lines[0].text.size(), kMaxLogTailBytes);
  EXPECT_TRUE(log->lines[0].text.starts_with("a\\x1b[31myy"));
  std::string many = line;
  for (std::size_t i = 0; i < kMaxLogTailLines; ++i) many += "," + line;
  EXPECT_FALSE(parse_log_lines(R"({"process":"7","lines":[)" + many + "]}").ok());
}

TEST(LogLines, WhatIsNoReplyIsRefused) {
  for (const char* wrong :
       {"", "[]", "{}", R"({"process":"7"})", R"({"process":"","lines":[]})", R"({"process":"7","lines":[[1,2,3]]})",
        R"({"process":"7","lines":[[1,2,9,"x"]]})", R"({"process":"7","lines":[[-1,2,1,"x"]]})",
        R"({"process":"7","lines":[[1,2,1,7]]})", R"({"process":"7","lines":[{"number":1}]})"}) {
    EXPECT_FALSE(parse_log_lines(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace millrace
