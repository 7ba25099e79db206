// UTF-8: what is well formed, and where a text may be cut.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

// The definition by numbers: the bits of a character, held to the range that needs so many bytes.
bool is_one_character(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  static constexpr uint32_t kFirst[] = {0, 0, 0x80, 0x800, 0x10000};  // that needs so many bytes
  const std::size_t length = bytes.size();
  uint32_t code = at(0);
  if (length > 1) {
    const uint32_t lead = 0xF00u >> length & 0xFF;  // C0, E0, F0
    const uint32_t mask = 0xFFu >> (length + 1);
    if ((code & ~mask) != lead) return false;
    code &= mask;
    for (std::size_t i = 1; i < length; ++i) {
      if (at(i) >> 6 != 2) return false;
      code = code << 6 | (at(i) & 0x3F);
    }
  } else if (code >= 0x80) {
    return false;
  }
  return code >= kFirst[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

std::string bytes(uint32_t number, int count) {
  std::string out;
  for (int i = count - 1; i >= 0; --i) out += static_cast<char>(number >> (8 * i));
  return out;
}

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

TEST(Utf8, EveryTwoBytesAgreeWithTheDefinition) {
  for (uint32_t n = 0; n < 0x10000; ++n) {
    const std::string text = bytes(n, 2);
    const bool wanted =
        is_one_character(text) || (is_one_character(text.substr(0, 1)) && is_one_character(text.substr(1)));
    ASSERT_EQ(is_utf8(text), wanted) << n;
  }
}

TEST(Utf8, CharactersOfThreeAndFourBytesAgreeWithTheDefinition) {
  static constexpr uint32_t kLast[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
  for (uint32_t first = 0xE0; first < 0x100; ++first) {
    for (uint32_t second = 0; second < 0x100; ++second) {
      for (const uint32_t third : kLast) {
        const std::string three = bytes(first << 16 | second << 8 | third, 3);
        ASSERT_EQ(is_utf8(three), is_one_character(three)) << first << " " << second << " " << third;
        for (const uint32_t fourth : kLast) {
          const std::string four = three + static_cast<char>(fourth);
          const bool wanted = is_one_character(four) || (is_one_character(three) && fourth < 0x80);
          ASSERT_EQ(is_utf8(four), wanted) << first << " " << second << " " << third << " " << fourth;
        }
      }
    }
  }
}

TEST(Utf8, TheFaultIsFoundWhereverItIs) {
  const std::string good = "plain text, zażółć, 你好, 😀 and more of it";
  EXPECT_EQ(utf8_find_invalid(good), std::string_view::npos);
  for (std::size_t at = 0; at <= 40; ++at) {
    std::string text(40, 'x');
    text.insert(at, "\xff");
    EXPECT_EQ(utf8_find_invalid(text), at);
    text.resize(at);
    EXPECT_EQ(utf8_find_invalid(text + "\xf0\x9f\x98"), at);  // cut off at the end
  }
}

TEST(Utf8, PrefixesAtCharacterBoundsAndRepairs) {
  EXPECT_EQ(utf8_prefix("zażółć", 100), "zażółć");
  EXPECT_EQ(utf8_prefix("zażółć", 3), "za");
  EXPECT_EQ(utf8_prefix("zażółć", 4), "zaż");
  EXPECT_EQ(utf8_prefix("😀", 3), "");
  EXPECT_EQ(utf8_repair("a\xff"
                        "b\xc3"),
            "a?b?");
  EXPECT_EQ(utf8_repair("zażółć"), "zażółć");
  EXPECT_EQ(utf8_repair(""), "");
}

}  // namespace
}  // namespace millrace
