#include "stages/generating/weight_snapshot.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "formats/gguf_model.h"
#include "formats/mapped_file.h"
#include "formats/safetensors_file.h"
#include "formats/snapshot_manifest.h"
#include "formats/tensor_names.h"
#include "stages/generating/start_weights.h"
#include "stages/generating/tensor_bytes.h"
#include "stages/generating/tensors_hash.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kNameStart = "weights-";
constexpr std::string_view kPartEnd = ".part";
// What a model's folder may hold of weights besides those that serve: none of it is copied, since it would be of
// another version.
constexpr const char* kWeightEndings[] = {".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".msgpack"};

Status cannot(const fs::path& path, const char* what, const std::error_code& why) {
  const bool full = why == std::errc::no_space_on_device;
  return error(full ? StatusCode::kResourceExhausted : StatusCode::kInternal, "{}: cannot be {}: {}", path.string(),
               what, why.message());
}

// The names of write_snapshot() and no others: what these match may be removed, so no folder of another program may
// match.
bool is_snapshot_name(const std::string& name) {
  return name.starts_with(kNameStart) && name.size() > kNameStart.size() &&
         std::all_of(name.begin() + kNameStart.size(), name.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == 'T' || c == 'Z' || c == '-'; });
}
bool is_part_name(const std::string& name) {
  // ".part" alone gives the substr() a count below 0, which takes the rest of the name and matches nothing.
  return name.starts_with('.') && name.ends_with(kPartEnd) &&
         is_snapshot_name(name.substr(1, name.size() - 1 - kPartEnd.size()));
}

// The time stands first in a name, with a fixed width and in UTC, so names sort by age.
std::vector<std::string> names_in(const fs::path& folder, bool (*which)(const std::string&)) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    if (which(it->path().filename().string())) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());  // the oldest first
  return names;
}

void remove_folder(const fs::path& folder) {
  std::error_code failed;
  fs::remove_all(folder, failed);
  if (failed) LOG_WARNING("{}: cannot be removed: {}", folder.string(), failed.message());
}

// The file of each tensor, as the model's folder has them; empty: it has one file.
Result<std::map<std::string, std::string>> files_of(const std::string& model) {
  std::map<std::string, std::string> out;
  // Without an index the model has one file.
  const Result<std::string> text = read_small_file(model + "/" + kIndexFile, kMaxIndexFileBytes);
  if (text.status().code() == StatusCode::kNotFound) return out;
  if (!text.ok()) return text.status();
  ASSIGN_OR_RETURN(const Json index, parse_json(*text));
  const Json* map = json_find(index, "weight_map");
  if (map == nullptr || !map->is_object()) return invalid_argument("{}/{}: has no weight_map", model, kIndexFile);
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) return invalid_argument("{}/{}: a file is no string", model, kIndexFile);
    // The file's name alone: an index with "../" in it must not make a file outside of the snapshot.
    out[plain_tensor_name(name)] = fs::path(file.get<std::string>()).filename().string();
  }
  return out;
}

class Writer {
 public:
  Writer(const Model& model, const std::string& from, std::string label, fs::path to, const std::atomic<bool>& stop)
      : model_(model), from_(from), label_(std::move(label)), to_(std::move(to)), stop_(stop) {}

  Status run() {
    ASSIGN_OR_RETURN(const auto files, files_of(from_));
    std::map<std::string, std::vector<std::string>> names;  // by file
    for (const auto& [name, entry] : model_.weights().entries()) {
      const auto found = files.find(name);
      // Experts that the folder stacks are tensors of their own here.
      const std::string last = files.empty() ? kOneFile : files.rbegin()->second;
      names[found == files.end() ? last : found->second].push_back(name);
    }
    // The manifest comes last and has the checksums of all other files: a folder without it is not complete. The folder
    // is synced behind it, and the caller renames it only then, so that after a loss of power a complete name has
    // complete files.
    RETURN_IF_ERROR(check_space());
    RETURN_IF_ERROR(copy_small_files());
    for (const auto& [file, of_file] : names) RETURN_IF_ERROR(write_file(file, of_file));
    if (!files.empty()) RETURN_IF_ERROR(write_index(names));
    RETURN_IF_ERROR(write_manifest());
    sync_folder(to_.string());
    return ok_status();
  }

 private:
  static uint64_t bytes_of(const WeightTable::Entry& entry) {
    return storage_bytes(entry.source, entry.weight.view.shape.elements());
  }

  // In the dtypes in which the tensors came, which is how they are written.
  uint64_t total_bytes() const {
    uint64_t bytes = 0;
    for (const auto& [name, entry] : model_.weights().entries()) bytes += bytes_of(entry);
    return bytes;
  }

  Status check_space() const {
    std::error_code failed;
    const fs::space_info space = fs::space(to_, failed);
    // Before the first byte: a disk that is full fails everything else that writes there. Where the file system gives
    // no figure, the writes show it.
    if (failed || space.available >= total_bytes()) return ok_status();
    return error(StatusCode::kResourceExhausted, "{}: the weights have {} bytes and {} are free on the disk",
                 to_.parent_path().string(), total_bytes(), space.available);
  }

  Status copy_small_files() const {
    std::error_code failed;
    for (fs::directory_iterator it(from_, failed), end; !failed && it != end; it.increment(failed)) {
      const std::string name = it->path().filename().string();
      std::error_code unknown;
      const bool weights = std::any_of(std::begin(kWeightEndings), std::end(kWeightEndings),
                                       [&name](const char* ending) { return name.ends_with(ending); });
      // Links are followed: in the cache of the Hugging Face tools each file is one.
      const bool small = it->is_regular_file(unknown) && it->file_size(unknown) <= kMaxSmallFileBytes;
      if (weights || !small || unknown || name.starts_with('.')) continue;
      // Both are written anew: the tensors' files may differ, and the manifest is of this version.
      if (name == kIndexFile || name == kSnapshotManifestName) continue;
      RETURN_IF_ERROR(copy_to_disk(it->path().string(), (to_ / name).string()));
    }
    return failed ? cannot(from_, "read", failed) : ok_status();
  }

  Status write_file(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<SafetensorsEntry> described;
    for (const std::string& tensor : tensors) {
      const WeightTable::Entry& entry = *model_.weights().find(tensor);
      described.push_back({.name = tensor, .dtype = entry.source, .shape = entry.weight.view.shape});
    }
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::create((to_ / name).string(), described));
    for (const std::string& tensor : tensors) {
      // A tensor at a time: that is how late the end of the server may come.
      if (stop_.load(std::memory_order_relaxed)) return error(StatusCode::kCancelled, "the snapshot was given up");
      // Compares the checksum too: bytes that changed in memory fail here and get into no file.
      Result<Buffer> bytes = tensor_bytes(*model_.weights().find(tensor));
      if (!bytes.ok()) return bytes.status().with_prefix(quoted_name(tensor));
      RETURN_IF_ERROR(file.write({bytes->data(), bytes->size_bytes()}));
    }
    return file.finish();
  }

  Status write_index(const std::map<std::string, std::vector<std::string>>& names) const {
    Json map = Json::object();
    for (const auto& [file, tensors] : names) {
      for (const std::string& tensor : tensors) map[tensor] = file;
    }
    const Json index{{"metadata", {{"total_size", total_bytes()}}}, {"weight_map", std::move(map)}};
    return write_to_disk(index.dump(2) + "\n", (to_ / kIndexFile).string());
  }

  Status write_manifest() const {
    SnapshotManifest manifest{.version = model_.weight_version(), .label = label_, .model = from_};
    manifest.weights_checksum = model_.weights_checksum();
    ASSIGN_OR_RETURN(manifest.tensors_hash, base_model_hash(from_));
    std::error_code failed;
    // Reads each file once more. The manifest is not there yet, so it does not list itself.
    for (fs::directory_iterator it(to_, failed), end; !failed && it != end; it.increment(failed)) {
      if (stop_.load(std::memory_order_relaxed)) return error(StatusCode::kCancelled, "the snapshot was given up");
      ASSIGN_OR_RETURN(FileSum file, sum_file(it->path().string()));
      manifest.files.push_back(std::move(file));
    }
    if (failed) return cannot(to_, "read", failed);
    std::sort(manifest.files.begin(), manifest.files.end(),
              [](const FileSum& a, const FileSum& b) { return a.name < b.name; });
    return write_to_disk(snapshot_manifest_json(manifest), (to_ / kSnapshotManifestName).string());
  }

  const Model& model_;
  const std::string from_;
  const std::string label_;
  const fs::path to_;
  const std::atomic<bool>& stop_;
};

// Removes all but the newest snapshots, of which `newest` is one whatever the clock shows, and those that replicas of
// this server start with.
void remove_old(const fs::path& folder, const std::string& newest, const ModelOptions& options) {
  std::vector<std::string> old = names_in(folder, is_snapshot_name);
  // The clock may have been set back since the last snapshot; then the newest does not have the largest name.
  std::erase(old, newest);
  old.resize(old.size() - std::min(old.size(), kKeptSnapshots - 1));
  for (const std::string& name : old) {
    std::error_code unknown;
    // By inode, not by name: a model's path may be a link to a snapshot.
    const bool used = fs::equivalent(folder / name, weights_folder(options), unknown) ||
                      fs::equivalent(folder / name, options.model, unknown);
    if (!used) remove_folder(folder / name);
  }
}

}  // namespace

std::vector<std::string> snapshot_names(const std::string& folder) { return names_in(folder, is_snapshot_name); }
std::vector<std::string> unfinished_snapshot_names(const std::string& folder) { return names_in(folder, is_part_name); }

Result<uint64_t> base_model_hash(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<SnapshotManifest> snapshot, read_snapshot_manifest(model));
  return snapshot ? snapshot->tensors_hash : tensors_hash(model);
}

Status check_snapshots(const ModelOptions& options) {
  const std::string& folder = options.weights_snapshot_dir;
  if (folder.empty()) return ok_status();
  if (options.quantize != "none") {
    return error(StatusCode::kUnsupported,
                 "--weights-snapshot-dir is set and --quantize is '{}', which does not keep the values of a trainer; "
                 "wanted --quantize none, or no snapshots",
                 options.quantize);
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(options.model));
  if (gguf) {
    return error(StatusCode::kUnsupported,
                 "--weights-snapshot-dir is set and {} is a GGUF file; wanted a Hugging Face model directory", *gguf);
  }
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) {
    return invalid_argument("--weights-snapshot-dir: {} is no folder; wanted one", folder);
  }
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return ok_status();
  return error(StatusCode::kPermissionDenied, "--weights-snapshot-dir: {} cannot be written", folder);
}

Result<std::string> write_snapshot(const Model& model, const ModelOptions& options, const std::string& label,
                                   const std::atomic<bool>& stop) {
  std::error_code failed;
  const fs::path folder = fs::absolute(options.weights_snapshot_dir, failed).lexically_normal();
  if (failed) return cannot(options.weights_snapshot_dir, "found", failed);
  // Left by a writer that died: there is one writer for a folder at a time, and it is this one.
  for (const std::string& left : names_in(folder, is_part_name)) remove_folder(folder / left);
  const std::string name =
      fmt::format("{}{:%Y%m%dT%H%M%SZ}-{:06}", kNameStart, fmt::gmtime(std::time(nullptr)), model.weight_version());
  const fs::path part = folder / fmt::format(".{}{}", name, kPartEnd), target = folder / name;
  if (fs::exists(target, failed)) return error(StatusCode::kConflict, "{} is there already", target.string());
  fs::create_directory(part, failed);
  if (failed) return cannot(part, "made", failed);
  Status status = Writer(model, options.model, label, part, stop).run();
  if (status.ok()) {
    // The one step in which it comes to be: both names are in one folder, so the rename is atomic (rename(2)).
    fs::rename(part, target, failed);
    if (failed) status = cannot(target, "made", failed);
  }
  if (!status.ok()) {
    remove_folder(part);
    return status;
  }
  // Before older ones are removed: after a loss of power one of the two names must be there.
  sync_folder(folder.string());
  remove_old(folder, name, options);
  return target.string();
}

}  // namespace millrace
