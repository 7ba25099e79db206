#include "formats/snapshot_manifest.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "formats/config_fields.h"

namespace millrace {
namespace {

Result<SnapshotManifest> parse_manifest(std::string_view text) {
  ASSIGN_OR_RETURN(const Json root, config_fields::parse_object(text));
  int format = 0;
  SnapshotManifest out;
  RETURN_IF_ERROR(config_fields::read_int(root, "format", std::nullopt, 0, INT32_MAX, format));
  if (format != kSnapshotManifestFormat) {
    return error(StatusCode::kUnsupported, "format is {}; wanted {}", format, kSnapshotManifestFormat);
  }
  int64_t version = 0;
  RETURN_IF_ERROR(json_read(root, "weight_version_number", version));
  if (version < 1) return invalid_argument("weight_version_number is {}; wanted 1 or more", version);
  out.version = static_cast<uint64_t>(version);
  RETURN_IF_ERROR(json_read(root, "weight_version", out.label));
  RETURN_IF_ERROR(json_read(root, "model", out.model));
  ASSIGN_OR_RETURN(out.tensors_hash, read_hex_sum(root, "tensors_hash"));
  ASSIGN_OR_RETURN(out.weights_checksum, read_hex_sum(root, "weights_checksum"));
  ASSIGN_OR_RETURN(out.files, read_file_sums(root));
  return out;
}

}  // namespace

std::string snapshot_manifest_json(const SnapshotManifest& m) {
  std::string label, model;
  json_append_string(label, m.label);
  json_append_string(model, m.model);
  return fmt::format(
      "{{\n  \"format\": {},\n  \"weight_version_number\": {},\n  \"weight_version\": {},\n  \"model\": {},\n"
      "  \"tensors_hash\": \"{:016x}\",\n  \"weights_checksum\": \"{:016x}\",\n  \"files\": {}\n}}\n",
      kSnapshotManifestFormat, m.version, label, model, m.tensors_hash, m.weights_checksum,
      file_sums_json(m.files, "  "));
}

Result<std::optional<SnapshotManifest>> read_snapshot_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kSnapshotManifestName;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::optional<SnapshotManifest>();
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path, MapMode::kCopy, kMaxSnapshotManifestBytes));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  ASSIGN_OR_RETURN(SnapshotManifest manifest,
                   config_fields::guarded<SnapshotManifest>(path, [&] { return parse_manifest(text); }));
  return std::optional<SnapshotManifest>(std::move(manifest));
}

}  // namespace millrace
