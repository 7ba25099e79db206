// UTF-8: what is well formed, and where a text may be cut.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

TEST(Utf8, WhatIsWellFormed) {
  // Sequences from the Unicode standard's table of well-formed UTF-8, and their neighbours.
  for (const char* good : {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(utf8_find_invalid(good), std::string_view::npos) << good;
  }
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE1\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF1\x80\x80", "\xFF"}) {
    EXPECT_EQ(utf8_find_invalid(bad), 0u) << bad;
  }
}

TEST(Utf8, APrefixHasNoPartOfACharacter) {
  const std::string text = "a\xC3\xA9\xF0\x9F\x98\x80z";  // of 1, 2, 4 and 1 bytes
  const size_t wanted[] = {0, 1, 1, 3, 3, 3, 3, 7, 8, 8};
  for (size_t most = 0; most < std::size(wanted); ++most)
    EXPECT_EQ(utf8_prefix(text, most).size(), wanted[most]) << most;
}

}  // namespace
}  // namespace millrace
