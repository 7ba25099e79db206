// The manifest of a snapshot (stages/generating/weight_snapshot.h): which version of the weights of which model it
// holds, and the size and checksum of each file beside it. It is written last: a folder without one is not complete.
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

inline constexpr const char* kSnapshotManifestName = "millrace-snapshot.json";
inline constexpr uint64_t kMaxSnapshotManifestBytes = 1u << 20;
inline constexpr int kSnapshotManifestFormat = 1;

struct SnapshotManifest {
  uint64_t version = 0;           // of the weights, by the server that wrote it; at least 1
  std::string label;              // the trainer's name for that version
  std::string model;              // path of the model's folder that was served, for people
  uint64_t tensors_hash = 0;      // of that folder (stages/generating/tensors_hash.h): which model it is
  uint64_t weights_checksum = 0;  // over all tensors (WeightTable::checksum)
  std::vector<FileSum> files;

  friend bool operator==(const SnapshotManifest&, const SnapshotManifest&) = default;
};

std::string snapshot_manifest_json(const SnapshotManifest& manifest);

// That of a folder; nullopt: it has none. Errors name the file and what is wrong with it.
Result<std::optional<SnapshotManifest>> read_snapshot_manifest(const std::string& folder);

}  // namespace millrace
