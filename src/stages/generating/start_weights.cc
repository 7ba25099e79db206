#include "stages/generating/start_weights.h"

#include <filesystem>
#include <iterator>

#include "base/log.h"
#include "formats/model_config.h"
#include "formats/same_config.h"
#include "formats/snapshot_manifest.h"
#include "stages/generating/weight_snapshot.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "another --weights-snapshot-dir, or --start-weights model";

Status check_base(const SnapshotManifest& manifest, const std::string& folder, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const uint64_t base, base_model_hash(options.model));
  if (manifest.tensors_hash == base) return ok_status();
  return invalid_argument("{} is a snapshot of {}, and --model is {}, which has other weights; wanted {}", folder,
                          manifest.model, options.model, kRemedy);
}

Status check_config(const std::string& folder, const ModelOptions& options) {
  ASSIGN_OR_RETURN(const ModelDir seen, open_model_dir(folder));
  ASSIGN_OR_RETURN(const ModelDir wanted, open_model_dir(options.model));
  const Status same = check_same_config(seen.config, wanted.config);
  if (same.ok()) return same;
  return invalid_argument("{}: {}; or {}", folder, same.message(), kRemedy);
}

// kUnavailable: it is of no use, and another one may be; with the reason.
Result<StartWeights> open_snapshot(const std::string& folder, const ModelOptions& options) {
  const auto damaged = [](const Status& why) { return error(StatusCode::kUnavailable, "{}", why.message()); };
  const Result<std::optional<SnapshotManifest>> manifest = read_snapshot_manifest(folder);
  if (!manifest.ok()) return damaged(manifest.status());
  if (!*manifest) {
    return error(StatusCode::kUnavailable, "{} has no {}: it is not complete", folder, kSnapshotManifestName);
  }
  const SnapshotManifest& found = **manifest;
  RETURN_IF_ERROR(check_base(found, folder, options));
  LOG_INFO("weights: checking the snapshot {}", folder);
  if (const Status sums = check_file_sums(folder, found.files, kSnapshotManifestName, {}); !sums.ok()) {
    return damaged(sums);
  }
  RETURN_IF_ERROR(check_config(folder, options));
  return StartWeights{
      .version = found.version, .label = found.label, .checksum = found.weights_checksum, .path = folder};
}

Result<std::optional<StartWeights>> newest_snapshot(const std::string& folder, const ModelOptions& options) {
  for (const std::string& name : unfinished_snapshot_names(folder)) {
    LOG_WARNING("weights: {}/{} is skipped: it was not written to its end", folder, name);
  }
  const std::vector<std::string> names = snapshot_names(folder);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    Result<StartWeights> found = open_snapshot(folder + "/" + *name, options);
    if (found.ok()) return std::optional(std::move(*found));
    if (found.status().code() != StatusCode::kUnavailable) return found.status();
    const bool last = std::next(name) == names.rend();
    LOG_WARNING("weights: a snapshot is skipped: {}; {}", found.status().message(),
                last ? "the model's own weights are used" : "the one before is tried");
  }
  return std::optional<StartWeights>();
}

Result<std::optional<StartWeights>> named_snapshot(const std::string& folder, const ModelOptions& options) {
  std::error_code failed;
  const fs::path path = fs::weakly_canonical(options.start_weights, failed);
  if (failed || path.parent_path() != folder) {
    return invalid_argument("--start-weights is '{}'; wanted newest, model, or a folder in {}", options.start_weights,
                            folder);
  }
  Result<StartWeights> found = open_snapshot(path.string(), options);
  if (found.ok()) return std::optional(std::move(*found));
  return invalid_argument("--start-weights: {}", found.status().message());
}

}  // namespace

Result<std::optional<StartWeights>> find_start_weights(const ModelOptions& options) {
  const std::optional<StartWeights> none;
  if (options.weights_snapshot_dir.empty()) {
    if (!starts_from_snapshot(options)) return none;
    return invalid_argument("--start-weights is '{}', and --weights-snapshot-dir is not set; wanted both",
                            options.start_weights);
  }
  std::error_code failed;
  const fs::path folder = fs::canonical(options.weights_snapshot_dir, failed);
  if (options.start_weights == kStartModel) return none;
  if (failed && !starts_from_snapshot(options)) return none;  // this host may have no stage with weights
  RETURN_IF_ERROR(check_snapshots(options));
  if (starts_from_snapshot(options)) return named_snapshot(folder.string(), options);
  if (fs::exists(fs::path(options.model) / kSnapshotManifestName, failed)) return none;  // the user chose this one
  return newest_snapshot(folder.string(), options);
}

}  // namespace millrace
