#include "formats/shard_manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/xxh3.h"
#include "formats/config_fields.h"

namespace millrace {
namespace {

using config_fields::read_int;

constexpr int kMaxLayers = 1 << 20;
constexpr std::size_t kMaxFiles = 64;
constexpr std::size_t kReadBytes = 16u << 20;  // between two calls of the progress

// 16 hexadecimal digits: a JSON number keeps 53 bits.
Result<uint64_t> read_hash(const Json& object, const char* key) {
  std::string text;
  RETURN_IF_ERROR(json_read(object, key, text));
  uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, hash, 16);
  if (text.size() == 16 && code == std::errc() && rest == end) return hash;
  return invalid_argument("{} is '{}'; wanted 16 hexadecimal digits", key, text.substr(0, 64));
}

Result<ShardManifest::File> read_file(const std::string& name, const Json& entry) {
  if (!entry.is_object()) return invalid_argument("file '{}' is {}; wanted an object", name, json_type_name(entry));
  if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.')) {
    return invalid_argument("it names the file '{}'; wanted a name in its folder", name.substr(0, 64));
  }
  ShardManifest::File out{.name = name};
  int64_t bytes = -1;
  RETURN_IF_ERROR(json_read(entry, "bytes", bytes));
  if (bytes < 0) return invalid_argument("bytes of '{}' are {}; wanted 0 or more", name, bytes);
  out.bytes = static_cast<uint64_t>(bytes);
  ASSIGN_OR_RETURN(out.xxh3, read_hash(entry, "xxh3"));
  return out;
}

Result<ShardManifest> parse_manifest(std::string_view text) {
  ASSIGN_OR_RETURN(const Json root, config_fields::parse_object(text));
  int version = 0;
  ShardManifest out;
  RETURN_IF_ERROR(read_int(root, "version", std::nullopt, 0, INT32_MAX, version));
  if (version != kShardManifestVersion) {
    return error(StatusCode::kUnsupported, "version is {}; wanted {}: split the model again", version,
                 kShardManifestVersion);
  }
  RETURN_IF_ERROR(read_int(root, "layers", std::nullopt, 1, kMaxLayers, out.layers));
  RETURN_IF_ERROR(read_int(root, "begin", std::nullopt, 0, out.layers, out.begin));
  RETURN_IF_ERROR(read_int(root, "end", std::nullopt, out.begin, out.layers, out.end));
  RETURN_IF_ERROR(read_int(root, "ranges", std::nullopt, 1, out.layers + 1, out.ranges));
  RETURN_IF_ERROR(read_int(root, "range", std::nullopt, 0, out.ranges - 1, out.range));
  ASSIGN_OR_RETURN(out.tensors_hash, read_hash(root, "tensors_hash"));
  const Json* files = json_find(root, "files");
  if (files == nullptr || !files->is_object() || files->size() > kMaxFiles) {
    return invalid_argument("files is not there or too large; wanted an object of at most {} files", kMaxFiles);
  }
  for (const auto& [name, entry] : files->items()) {
    ASSIGN_OR_RETURN(ShardManifest::File file, read_file(name, entry));
    out.files.push_back(std::move(file));
  }
  return out;
}

}  // namespace

std::string shard_manifest_json(const ShardManifest& m) {
  std::string out = fmt::format(
      "{{\n  \"version\": {},\n  \"range\": {},\n  \"ranges\": {},\n  \"begin\": {},\n  \"end\": {},\n"
      "  \"layers\": {},\n  \"tensors_hash\": \"{:016x}\",\n  \"files\": {{",
      kShardManifestVersion, m.range, m.ranges, m.begin, m.end, m.layers, m.tensors_hash);
  const char* separator = "\n";
  for (const ShardManifest::File& file : m.files) {
    out += separator;
    out += "    ";
    json_append_string(out, file.name);
    out += fmt::format(": {{\"bytes\": {}, \"xxh3\": \"{:016x}\"}}", file.bytes, file.xxh3);
    separator = ",\n";
  }
  return out + "\n  }\n}\n";
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
  uint64_t total = 0, done = 0;
  for (const ShardManifest::File& file : manifest.files) total += file.bytes;
  for (const ShardManifest::File& wanted : manifest.files) {
    const std::string path = model + "/" + wanted.name;
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    if (file.size_bytes() != wanted.bytes) {
      return invalid_argument("{} has {} bytes; wanted {}, as {} has it", path, file.size_bytes(), wanted.bytes,
                              kShardManifestName);
    }
    StreamChecksum sum;
    for (std::size_t at = 0; at < file.size_bytes(); at += kReadBytes) {
      const std::size_t size = std::min(kReadBytes, file.size_bytes() - at);
      sum.add(file.bytes().data() + at, size);
      done += size;
      if (progress) progress(done, total);
    }
    clear_upper_vectors();
    const uint64_t seen = sum.value();
    if (seen == wanted.xxh3) continue;
    return invalid_argument("the checksum of {} is {:016x}; wanted {:016x}, as {} has it", path, seen, wanted.xxh3,
                            kShardManifestName);
  }
  return ok_status();
}

}  // namespace millrace
