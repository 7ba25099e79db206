#include "models/split_model.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/json.h"
#include "base/xxh3.h"
#include "formats/shard_manifest.h"
#include "formats/weights.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWriteBytes = 8u << 20;  // between two calls of the progress
constexpr std::size_t kHeaderAlignment = 8;    // of the data behind it, as the reference writer has it
constexpr const char* kWeightsName = "model.safetensors";

// What a model directory may have beside its weights, each where it is there.
constexpr const char* kSmallFiles[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer.model",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "preprocessor_config.json",
                                       "video_preprocessor_config.json",
                                       "processor_config.json"};

// A file that is written, with its size and checksum.
class SummedFile {
 public:
  explicit SummedFile(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wbx")) {}

  Status write(const void* bytes, std::size_t size) {
    if (!file_ || std::fwrite(bytes, 1, size, file_.get()) != size) return failed();
    sum_.add(bytes, size);
    size_ += size;
    return ok_status();
  }
  // Its bytes are on the disk.
  Result<FileSum> finish() {
    if (!file_ || std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) return failed();
    file_.reset();
    clear_upper_vectors();
    return FileSum{fs::path(path_).filename().string(), size_, sum_.value()};
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Status failed() const {
    const StatusCode code = errno == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kInvalidArgument;
    return error(code, "{}: cannot be written: {}", path_, std::strerror(errno));
  }

  const std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  StreamChecksum sum_;
  uint64_t size_ = 0;
};

class Splitter {
 public:
  Splitter(const std::string& model, const std::vector<LayerRange>& ranges, uint64_t tensors_hash,
           const WriteProgress& progress)
      : model_(model), ranges_(ranges), tensors_hash_(tensors_hash), progress_(progress) {}

  Status run(const fs::path& folder) {
    RETURN_IF_ERROR(open());
    for (std::size_t range = 0; range < ranges_.size(); ++range) {
      RETURN_IF_ERROR(write_range(range, folder / std::to_string(range)));
    }
    return store_->verify_unchanged();
  }

 private:
  Status open() {
    ASSIGN_OR_RETURN(dir_, open_model_dir(model_));
    if (!dir_.gguf.empty()) {
      return error(
          StatusCode::kUnsupported,
          "{} is a GGUF file; wanted a Hugging Face model directory. A host reads its range of a complete GGUF "
          "file too",
          dir_.gguf);
    }
    ASSIGN_OR_RETURN(const auto shard, read_shard_manifest(model_));
    if (shard) {
      return invalid_argument("{} is a shard with the layers [{}, {}); wanted the complete model", model_, shard->begin,
                              shard->end);
    }
    ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(model_));
    store_ = std::make_shared<WeightStore>(std::move(store));
    // Every name and shape is checked as it is for serving; nothing is computed.
    RETURN_IF_ERROR(load_model(dir_.config, store_).status());
    for (std::size_t range = 0; range < ranges_.size(); ++range) {
      for (const std::string& name : names_of(range)) total_ += bytes_of(name);
    }
    return ok_status();
  }

  uint64_t bytes_of(const std::string& name) const {
    const SafetensorsEntry& entry = *store_->find(name);
    return entry.end - entry.begin;
  }

  std::vector<std::string> names_of(std::size_t range) const {
    std::vector<std::string> out;
    for (std::string& name : store_->names()) {
      if (!of_another_range(dir_.config, ranges_[range], name)) out.push_back(std::move(name));
    }
    return out;
  }

  // The length of the header and the header, with spaces up to the alignment.
  std::string header_of(const std::vector<std::string>& names) const {
    std::string json = R"({"__metadata__":{"format":"pt"})";
    uint64_t at = 0;
    for (const std::string& name : names) {
      const SafetensorsEntry& entry = *store_->find(name);
      json += ',';
      json_append_string(json, name);
      std::string shape;
      for (int i = 0; i < entry.shape.rank(); ++i) shape += fmt::format("{}{}", i > 0 ? "," : "", entry.shape[i]);
      json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dtype_name(entry.dtype), shape,
                          at, at + bytes_of(name));
      at += bytes_of(name);
    }
    json += '}';
    json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xff);
    return out + json;
  }

  Status write_range(std::size_t range, const fs::path& folder) {
    std::error_code failed;
    fs::create_directory(folder, failed);
    if (failed) return invalid_argument("{}: cannot be made: {}", folder.string(), failed.message());
    ShardManifest manifest{.range = static_cast<int>(range),
                           .ranges = static_cast<int>(ranges_.size()),
                           .begin = ranges_[range].begin,
                           .end = ranges_[range].end,
                           .layers = dir_.config.layers,
                           .tensors_hash = tensors_hash_,
                           .files = {}};
    for (const char* name : kSmallFiles) RETURN_IF_ERROR(copy(name, folder, manifest));
    RETURN_IF_ERROR(write_weights(range, folder, manifest));
    SummedFile file((folder / kShardManifestName).string());
    const std::string json = shard_manifest_json(manifest);
    RETURN_IF_ERROR(file.write(json.data(), json.size()));
    return file.finish().status();
  }

  Status copy(const char* name, const fs::path& folder, ShardManifest& manifest) const {
    const auto from = MappedFile::open(model_ + "/" + name);
    if (from.status().code() == StatusCode::kNotFound) return ok_status();
    if (!from.ok()) return from.status();
    SummedFile to((folder / name).string());
    RETURN_IF_ERROR(to.write(from->bytes().data(), from->bytes().size()));
    ASSIGN_OR_RETURN(FileSum file, to.finish());
    manifest.files.push_back(std::move(file));
    return ok_status();
  }

  Status write_weights(std::size_t range, const fs::path& folder, ShardManifest& manifest) {
    const std::vector<std::string> names = names_of(range);
    SummedFile to((folder / kWeightsName).string());
    const std::string header = header_of(names);
    RETURN_IF_ERROR(to.write(header.data(), header.size()));
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const TensorView tensor, store_->get_any(name));
      const auto* bytes = static_cast<const std::byte*>(tensor.data);
      for (std::size_t at = 0; at < tensor.size_bytes(); at += kWriteBytes) {
        const std::size_t size = std::min(kWriteBytes, tensor.size_bytes() - at);
        RETURN_IF_ERROR(to.write(bytes + at, size));
        done_ += size;
        if (!progress_(done_, total_)) return error(StatusCode::kCancelled, "stopped; nothing is left behind");
      }
      store_->release(name);
    }
    ASSIGN_OR_RETURN(FileSum file, to.finish());
    manifest.files.push_back(std::move(file));
    return ok_status();
  }

  const std::string& model_;
  const std::vector<LayerRange>& ranges_;
  const uint64_t tensors_hash_;
  const WriteProgress& progress_;
  ModelDir dir_;
  std::shared_ptr<WeightStore> store_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

Status split_model(const std::string& model, const std::vector<LayerRange>& ranges, uint64_t tensors_hash,
                   const std::string& output, const WriteProgress& progress) {
  std::error_code failed;
  fs::path target = fs::absolute(output, failed).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (fs::exists(fs::symlink_status(target, failed))) {
    return error(StatusCode::kConflict, "{} is there already; wanted the name of a new folder", output);
  }
  if (!fs::is_directory(target.parent_path(), failed)) {
    return error(StatusCode::kNotFound, "{} is no folder; wanted one, for {} in it", target.parent_path().string(),
                 target.filename().string());
  }
  const fs::path part = fmt::format("{}.part-{}", target.string(), ::getpid());
  if (!fs::create_directory(part, failed)) {
    return invalid_argument("{}: cannot be made: {}", part.string(), failed ? failed.message() : "it is there already");
  }
  Status status = Splitter(model, ranges, tensors_hash, progress).run(part);
  if (status.ok()) {
    fs::rename(part, target, failed);
    if (failed) status = invalid_argument("{}: cannot be made: {}", output, failed.message());
  }
  if (!status.ok()) fs::remove_all(part, failed);
  return status;
}

}  // namespace millrace
