#include "hub/digest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace millrace::hub {
namespace {

std::string digest_of(std::string_view text, const std::string& like) {
  auto digest = Digest::make(like, text.size());
  EXPECT_TRUE(digest.ok());
  for (const char& c : text) EXPECT_TRUE(digest->update(std::as_bytes(std::span(&c, 1))).ok());
  return digest->finish().value();
}

// FIPS 180-4's example, and what `git hash-object` prints for a file of "test content\n" (Pro Git, chapter 10.2).
TEST(HubDigest, AsSha256AndGitComputeIt) {
  EXPECT_EQ(digest_of("abc", std::string(64, '0')), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("test content\n", std::string(40, '0')), "d670460b4b4aece5915caf5c68d12f560a9fe3e4");
  EXPECT_EQ(digest_of("", std::string(40, '0')), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

TEST(HubDigest, WhatIsAChecksum) {
  EXPECT_TRUE(is_checksum(std::string(64, 'a')));
  EXPECT_TRUE(is_checksum(std::string(40, '9')));
  for (const std::string& bad : {std::string(), std::string(39, 'a'), std::string(64, 'A'),
                                 "../" + std::string(61, 'a'), std::string(40, 'g')}) {
    EXPECT_FALSE(is_checksum(bad)) << bad;
  }
}

}  // namespace
}  // namespace millrace::hub
