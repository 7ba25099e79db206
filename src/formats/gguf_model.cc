// Opening GGUF models: which file is meant, and the shards of one.
#include "formats/gguf_model.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <set>

#include "formats/gguf_vision.h"
#include "formats/safetensors.h"
#include "formats/shard_names.h"

namespace millrace {
namespace {

constexpr std::string_view kSuffix = ".gguf";

Result<GgufFile> open_file(const std::string& path, MapMode mode) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, mode));
  ASSIGN_OR_RETURN(GgufHeader header, parse_gguf(file.bytes(), path));
  return GgufFile{std::move(file), std::move(header)};
}

// Whether split.no and split.count agree with the file's name.
Status check_split(const GgufFile& shard, int number, int count) {
  int64_t seen_number = 0, seen_count = 0;
  const std::string& path = shard.file.path();
  RETURN_IF_ERROR(gguf_read(shard.header, "split.no", std::nullopt, 0, UINT16_MAX, seen_number).with_prefix(path));
  RETURN_IF_ERROR(gguf_read(shard.header, "split.count", std::nullopt, 0, UINT16_MAX, seen_count).with_prefix(path));
  if (seen_number == number - 1 && seen_count == count) return ok_status();
  return invalid_argument("{}: split.no is {} and split.count {}; wanted {} and {}, as in its name", path, seen_number,
                          seen_count, number - 1, count);
}

Status check_total(const std::vector<GgufFile>& files) {
  int64_t total = 0, wanted = 0;
  for (const GgufFile& file : files) total += static_cast<int64_t>(file.header.tensors.size());
  const std::string& path = files[0].file.path();
  RETURN_IF_ERROR(gguf_read(files[0].header, "split.tensors.count", total, 0, INT64_MAX, wanted).with_prefix(path));
  if (total == wanted) return ok_status();
  return invalid_argument("{}: split.tensors.count is {}; wanted {}, the tensors in its {} shards", path, wanted, total,
                          files.size());
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

Status GgufModel::open_shards(const std::string& first, int count, MapMode mode) {
  if (count > kMaxGgufShards) {
    return error(StatusCode::kTooLarge, "{}: is one of {} shards; wanted at most {}", first, count, kMaxGgufShards);
  }
  const GgufShardName name = *parse_gguf_shard_name(first);
  for (int i = 1; i <= count; ++i) {
    Result<GgufFile> file = open_file(name.path(i), mode);
    if (!file.ok() && file.status().code() == StatusCode::kNotFound) {
      return file.status().with_prefix(fmt::format("{}: shard {} of {} is missing", first, i, count));
    }
    RETURN_IF_ERROR(file.status());
    RETURN_IF_ERROR(check_split(*file, i, count));
    files_.push_back(std::move(file).value());
  }
  return check_total(files_);
}

Result<GgufModel> GgufModel::open(const std::string& path, MapMode mode) {
  GgufModel model;
  if (const std::optional<GgufShardName> name = parse_gguf_shard_name(path); name && name->count > 1) {
    RETURN_IF_ERROR(model.open_shards(path, name->count, mode));
    return model;
  }
  ASSIGN_OR_RETURN(GgufFile file, open_file(path, mode));
  int64_t count = 1;
  RETURN_IF_ERROR(gguf_read(file.header, "split.count", 1, 0, UINT16_MAX, count).with_prefix(path));
  if (count > 1) {
    return invalid_argument("{}: is one of {} shards; wanted a name like NAME-00001-of-{:05d}.gguf", path, count,
                            count);
  }
  model.files_.push_back(std::move(file));
  return model;
}

const GgufTensor* GgufModel::find_tensor(std::string_view name) const {
  for (const GgufFile& file : files_) {
    if (const GgufTensor* tensor = file.header.find_tensor(name); tensor != nullptr) return tensor;
  }
  return nullptr;
}

std::span<const std::byte> GgufModel::bytes_of(std::string_view name) const {
  for (const GgufFile& file : files_) {
    const GgufTensor* tensor = file.header.find_tensor(name);
    if (tensor == nullptr) continue;
    return file.file.bytes().subspan(file.header.data_start + tensor->begin, tensor->end - tensor->begin);
  }
  return {};
}

Result<std::optional<std::string>> find_gguf(const std::string& path) {
  if (!is_folder(path)) return path.ends_with(kSuffix) ? std::optional<std::string>(path) : std::nullopt;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (folder == nullptr) return std::optional<std::string>();  // the reader of the folder reports why
  std::set<std::string> found;
  for (std::size_t i = 0; i < kMaxGgufFolderEntries; ++i) {
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
      return std::optional<std::string>();
    if (!name.ends_with(kSuffix) || is_tower_file(name)) continue;
    const std::optional<GgufShardName> shard = parse_gguf_shard_name(name);
    found.insert(shard ? shard->path(1) : name);
  }
  if (found.size() > 1) {
    return invalid_argument("{}: holds {} GGUF models, {} and {} among them; wanted one, or the path of a file", path,
                            found.size(), quoted_name(*found.begin()), quoted_name(*std::next(found.begin())));
  }
  if (found.empty()) return std::optional<std::string>();
  return std::optional<std::string>(path + "/" + *found.begin());
}

}  // namespace millrace
