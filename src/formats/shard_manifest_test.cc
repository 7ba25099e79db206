// The manifest of a shard: what is written comes back, and what is wrong is refused with the file's name.
#include "formats/shard_manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

ShardManifest sample() {
  return {.range = 1,
          .ranges = 3,
          .begin = 2,
          .end = 4,
          .layers = 6,
          .tensors_hash = 0xFEDCBA9876543210u,
          .files = {{"config.json", 2, 1}, {"model.safetensors", 3, UINT64_MAX}}};
}

class ShardManifestTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("shard-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string error_of(const std::string& text) {
    write(kShardManifestName, text);
    const auto manifest = read_shard_manifest(folder_.string());
    return manifest.ok() ? "accepted" : manifest.status().message();
  }
  std::filesystem::path folder_;
};

TEST_F(ShardManifestTest, WhatIsWrittenComesBack) {
  EXPECT_FALSE(read_shard_manifest(folder_.string()).value());
  EXPECT_EQ(error_of(shard_manifest_json(sample())), "accepted");
  EXPECT_EQ(*read_shard_manifest(folder_.string()).value(), sample());
}

TEST_F(ShardManifestTest, WhatIsWrongIsRefused) {
  const std::string good = shard_manifest_json(sample());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {changed("\"version\": 1", "\"version\": 2"), "version is 2; wanted 1"},
      {changed("\"end\": 4", "\"end\": 7"), "end"},
      {changed("\"begin\": 2", "\"begin\": 5"), "end"},
      {changed("\"range\": 1", "\"range\": 3"), "range"},
      {changed("fedcba9876543210", "fedc"), "tensors_hash is 'fedc'; wanted 16 hexadecimal digits"},
      {changed("config.json", "../config.json"), "it names the file '../config.json'"},
      {changed("\"bytes\": 2", "\"bytes\": -2"), "bytes of 'config.json' are -2"},
      {changed("\"files\"", "\"other\""), "files is not there"},
      {"[]", ""},
      {good.substr(0, good.size() / 2), ""},
  };
  for (const auto& [text, wanted] : cases) {
    const std::string found = error_of(text);
    EXPECT_NE(found.find(wanted), std::string::npos) << found << "\n" << text;
    EXPECT_NE(found.find(kShardManifestName), std::string::npos) << found;
  }
}

TEST_F(ShardManifestTest, FilesAreComparedByteForByte) {
  write("config.json", "{}");
  ShardManifest manifest = sample();
  manifest.files = {{"config.json", 2, 0}};
  const Status other = check_shard_files(folder_.string(), manifest, {});
  EXPECT_NE(other.message().find("wanted 0000000000000000, as millrace-shard.json has it"), std::string::npos)
      << other.message();
  const std::size_t at = other.message().find(" is ") + 4;
  manifest.files[0].xxh3 = std::stoull(other.message().substr(at, 16), nullptr, 16);
  uint64_t done = 0;
  EXPECT_TRUE(check_shard_files(folder_.string(), manifest, [&](uint64_t bytes, uint64_t) { done = bytes; }).ok());
  EXPECT_EQ(done, 2u);
  write("config.json", "{ }");
  EXPECT_NE(check_shard_files(folder_.string(), manifest, {}).message().find("has 3 bytes; wanted 2"),
            std::string::npos);
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_EQ(check_shard_files(folder_.string(), manifest, {}).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
