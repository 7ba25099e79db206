// The manifest of a snapshot: what is written comes back, and what is wrong is refused with the file's name.
#include "formats/snapshot_manifest.h"

#include <gtest/gtest.h>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using test_files::TempDir;

SnapshotManifest sample() {
  return {.version = 120,
          .label = "step \"120\"",
          .model = "/models/demo",
          .tensors_hash = 0xFEDCBA9876543210u,
          .weights_checksum = UINT64_MAX,
          .files = {{"config.json", 2, 1}, {"model.safetensors", 3, 2}}};
}

TEST(SnapshotManifest, WhatIsWrittenComesBack) {
  const TempDir dir;
  EXPECT_FALSE(read_snapshot_manifest(dir.path()).value());
  dir.write(kSnapshotManifestName, snapshot_manifest_json(sample()));
  EXPECT_EQ(read_snapshot_manifest(dir.path()).value(), sample());
}

TEST(SnapshotManifest, WhatIsWrongIsNamed) {
  const TempDir dir;
  const std::string good = snapshot_manifest_json(sample());
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON"},
           {good.substr(0, good.size() / 2), "JSON"},
           {with("\"format\": 1", "\"format\": 2"), "format is 2; wanted 1"},
           {with("_number\": 120", "_number\": 0"), "weight_version_number is 0"},
           {with("fedcba9876543210", "fedc"), "tensors_hash is 'fedc'"},
           {with("model.safetensors", "../model"), "../model"},
           {with("\"files\"", "\"others\""), "files"}}) {
    dir.write(kSnapshotManifestName, text);
    const auto manifest = read_snapshot_manifest(dir.path());
    ASSERT_FALSE(manifest.ok()) << text;
    EXPECT_NE(manifest.status().message().find(kSnapshotManifestName), std::string::npos);
    EXPECT_NE(manifest.status().message().find(part), std::string::npos) << manifest.status().message();
  }
}

}  // namespace
}  // namespace millrace
