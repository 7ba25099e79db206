#include "media/data_url.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace millrace {
namespace {

std::string text_of(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }

// RFC 4648, section 4, the plain way.
std::string encode(const std::vector<uint8_t>& bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? bytes[i + j] : 0);
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : kLetters[bits >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

TEST(DataUrl, TestVectorsOfRfc4648) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"Zg==", "f"},
                                                       {"Zm8=", "fo"},
                                                       {"Zm9v", "foo"},
                                                       {"Zm9vYg==", "foob"},
                                                       {"Zm9vYmE=", "fooba"},
                                                       {"Zm9vYmFy", "foobar"}};
  for (const auto& [encoded, plain] : cases) {
    const auto bytes = decode_base64(encoded, 6);
    ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
    EXPECT_EQ(text_of(*bytes), plain);
  }
}

TEST(DataUrl, RandomBytesComeBack) {
  std::mt19937 random(7);
  for (std::size_t size = 0; size < 200; ++size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    const auto decoded = decode_base64(encode(bytes), size);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(*decoded, bytes);
  }
}

TEST(DataUrl, StrictBase64) {
  const std::pair<const char*, const char*> cases[] = {
      {"Zg", "has 2 characters"},    {"Zg=", "has 3 characters"},      {"Zg==\n", "has 5 characters"},
      {"Zh==", "belong to no byte"}, {"Zm9=", "belong to no byte"},    {"Z===", "0x3d at offset 1"},
      {"====", "0x3d at offset 0"},  {"Zg==Zg==", "0x3d at offset 2"}, {"Zm9v\nmE=", "0x0a at offset 4"},
      {"Zm9-", "0x2d at offset 3"},  {"Zm%2", "0x25 at offset 2"},     {"Zm9vZ\xC3\xA4=", "0xc3 at offset 5"}};
  for (const auto& [text, wanted] : cases) {
    const auto bytes = decode_base64(text, 100);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(bytes.status().message().find(wanted), std::string::npos) << bytes.status().message();
  }
}

TEST(DataUrl, TheLimitIsOfDecodedBytes) {
  EXPECT_TRUE(decode_base64("Zm9vYg==", 4).ok());
  const auto bytes = decode_base64("Zm9vYg==", 3);
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().code(), StatusCode::kTooLarge);
  EXPECT_NE(bytes.status().message().find("4 bytes; wanted at most 3"), std::string::npos) << bytes.status().message();
}

TEST(DataUrl, TypeAndParameters) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"data:image/png;base64,Zm9v", "image/png", "foo"},
      {"DATA:;BASE64,Zm9v", "", "foo"},
      {"data:text/plain;charset=utf-8;base64,Zg==", "text/plain;charset=utf-8", "f"},
      {"data:image/jpeg;base64,", "image/jpeg", ""}};
  for (const auto& [url, type, plain] : cases) {
    EXPECT_TRUE(is_data_url(url));
    const auto read = read_data_url(url, 100);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->media_type, type);
    EXPECT_EQ(text_of(read->bytes), plain);
  }
}

TEST(DataUrl, MalformedUrls) {
  EXPECT_FALSE(is_data_url("http://example.org/data:"));
  EXPECT_FALSE(is_data_url("data"));
  EXPECT_EQ(read_data_url("file:///x", 9).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_data_url("data:image/png;base64", 9).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_data_url("data:,hello", 9).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(read_data_url("data:image/svg+xml,%3Csvg", 9).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(read_data_url("data:base64,Zg==", 9).status().code(), StatusCode::kUnsupported);
  EXPECT_FALSE(read_data_url("data:" + std::string(2000, 'x') + ";base64,Zg==", 9).ok());
}

}  // namespace
}  // namespace millrace
