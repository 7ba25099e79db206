// The manifest of a shard: a model directory with the tensors of one range of layers alone, as `millrace split` writes
// it. It has which layers of how many, the hash of the model that was split, so that shards of one model agree with
// each other and with the complete directory, and the size and checksum of each file beside it.
//
// Thread safety: values; free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/file_sums.h"

namespace millrace {

inline constexpr const char* kShardManifestName = "millrace-shard.json";
inline constexpr uint64_t kMaxShardManifestBytes = 1u << 20;
inline constexpr int kShardManifestVersion = 1;

struct ShardManifest {
  int range = 0;   // from 0; the first one has the embedding, the final norm and the head
  int ranges = 0;  // of the split
  int begin = 0;   // its layers are [begin, end)
  int end = 0;
  int layers = 0;             // of the model
  uint64_t tensors_hash = 0;  // of the model that was split (stages/generating/tensors_hash.h)
  std::vector<FileSum> files;

  friend bool operator==(const ShardManifest&, const ShardManifest&) = default;
};

std::string shard_manifest_json(const ShardManifest& manifest);

// That of a model directory; nullopt: it is no shard. kInvalidArgument names the file and what is wrong with it.
Result<std::optional<ShardManifest>> read_shard_manifest(const std::string& model);

// Reads every byte of the files. kInvalidArgument: one has another size or checksum than the manifest, with both.
Status check_shard_files(const std::string& model, const ShardManifest& manifest, const ProgressFn& progress);

}  // namespace millrace
