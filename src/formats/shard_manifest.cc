#include "formats/shard_manifest.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "formats/config_fields.h"

namespace millrace {
namespace {

using config_fields::read_int;

constexpr int kMaxShardLayers = 1 << 20;

Result<ShardManifest> parse_manifest(std::string_view text) {
  ASSIGN_OR_RETURN(const Json root, config_fields::parse_object(text));
  int version = 0;
  ShardManifest out;
  RETURN_IF_ERROR(read_int(root, "version", std::nullopt, 0, INT32_MAX, version));
  if (version != kShardManifestVersion) {
    return error(StatusCode::kUnsupported, "version is {}; wanted {}: split the model again", version,
                 kShardManifestVersion);
  }
  RETURN_IF_ERROR(read_int(root, "layers", std::nullopt, 1, kMaxShardLayers, out.layers));
  RETURN_IF_ERROR(read_int(root, "begin", std::nullopt, 0, out.layers, out.begin));
  RETURN_IF_ERROR(read_int(root, "end", std::nullopt, out.begin, out.layers, out.end));
  RETURN_IF_ERROR(read_int(root, "ranges", std::nullopt, 1, out.layers + 1, out.ranges));
  RETURN_IF_ERROR(read_int(root, "range", std::nullopt, 0, out.ranges - 1, out.range));
  ASSIGN_OR_RETURN(out.tensors_hash, read_hex_sum(root, "tensors_hash"));
  ASSIGN_OR_RETURN(out.files, read_file_sums(root));
  return out;
}

}  // namespace

std::string shard_manifest_json(const ShardManifest& m) {
  return fmt::format(
      "{{\n  \"version\": {},\n  \"range\": {},\n  \"ranges\": {},\n  \"begin\": {},\n  \"end\": {},\n"
      "  \"layers\": {},\n  \"tensors_hash\": \"{:016x}\",\n  \"files\": {}\n}}\n",
      kShardManifestVersion, m.range, m.ranges, m.begin, m.end, m.layers, m.tensors_hash,
      file_sums_json(m.files, "  "));
}

Result<std::optional<ShardManifest>> read_shard_manifest(const std::string& model) {
  const std::string path = model + "/" + kShardManifestName;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::optional<ShardManifest>();
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path, MapMode::kCopy, kMaxShardManifestBytes));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  ASSIGN_OR_RETURN(ShardManifest manifest,
                   config_fields::guarded<ShardManifest>(path, [&] { return parse_manifest(text); }));
  return std::optional<ShardManifest>(std::move(manifest));
}

Status check_shard_files(const std::string& model, const ShardManifest& manifest, const ProgressFn& progress) {
  return check_file_sums(model, manifest.files, kShardManifestName, progress);
}

}  // namespace millrace
