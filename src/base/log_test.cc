#include "base/log.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// What a client sends stands in some messages: it must not look like a line of ours, nor steer a terminal.
TEST(Log, AMessageIsOneLineOfPrintableText) {
  EXPECT_EQ(log_line("GET /x -> 200"), "GET /x -> 200");
  EXPECT_EQ(log_line("/\r\n2026-11-23 E server: forged"), "/\\x0d\\x0a2026-11-23 E server: forged");
  EXPECT_EQ(log_line(std::string("\x1b[2J\0\x7f", 6)), "\\x1b[2J\\x00\\x7f");
  EXPECT_EQ(log_line("caf\xC3\xA9"), "caf\xC3\xA9");
}

}  // namespace
}  // namespace millrace
