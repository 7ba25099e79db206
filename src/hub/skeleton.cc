#include "hub/skeleton.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"
#include "formats/shard_names.h"
#include "formats/weights.h"
#include "hub/cache.h"
#include "hub/selection.h"

namespace millrace::hub {
namespace {

constexpr uint64_t kFirstBytes = 256 << 10;                                     // enough for most headers
constexpr uint64_t kGgufSteps[] = {1 << 20, 16 << 20, kMaxFetchedHeaderBytes};  // a vocabulary has some 8 MB

// The first bytes of a file that has `size` of them.
Status write_start(const std::string& path, const std::string& bytes, uint64_t size) {
  RETURN_IF_ERROR(make_folders(std::filesystem::path(path).parent_path().string()));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return file_error(errno, path, "write");
  const bool written = ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
                       ::ftruncate(fd, static_cast<off_t>(size)) == 0;
  const int number = errno;
  ::close(fd);
  return written ? ok_status() : file_error(number, path, "write");
}

class SkeletonFetch {
 public:
  SkeletonFetch(const Hub& hub, Connection connection, Repository repository, std::string folder)
      : hub_(hub), connection_(std::move(connection)), repository_(std::move(repository)), folder_(std::move(folder)) {}

  Status fetch(RemoteFile file);
  Status fetch_shards();
  const Repository& repository() const { return repository_; }
  std::vector<RemoteFile> take_files() { return std::move(files_); }

 private:
  Status fetch_safetensors(const RemoteFile& file);
  Status fetch_gguf(const RemoteFile& file);

  const Hub& hub_;
  Connection connection_;
  const Repository repository_;
  const std::string folder_;
  std::vector<RemoteFile> files_;
};

Status SkeletonFetch::fetch(RemoteFile file) {
  RETURN_IF_ERROR(hub_.complete(connection_, repository_, file));
  files_.push_back(file);
  if (file.name.ends_with(".safetensors")) return fetch_safetensors(file);
  if (file.name.ends_with(".gguf")) return fetch_gguf(file);
  // Tokenizers are the largest of the others, and have nothing to show.
  if (file.size > kMaxIndexFileBytes || !file.name.ends_with(".json") || file.name == "tokenizer.json")
    return ok_status();
  if (file.size == 0) return ok_status();
  ASSIGN_OR_RETURN(const std::string text, hub_.fetch_start(connection_, repository_, file.name, file.size));
  return write_start(folder_ + "/" + file.name, text, text.size());
}

Status SkeletonFetch::fetch_safetensors(const RemoteFile& file) {
  const std::string what = repository_.name + "/" + file.name;
  ASSIGN_OR_RETURN(std::string start, hub_.fetch_start(connection_, repository_, file.name, kFirstBytes));
  if (start.size() < 8) return invalid_argument("{} has {} bytes; wanted a safetensors file", what, start.size());
  uint64_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(start[static_cast<std::size_t>(i)]);
  if (header > kMaxFetchedHeaderBytes) {
    return error(StatusCode::kTooLarge, "{} has a header of {} bytes; wanted at most {}", what, header,
                 kMaxFetchedHeaderBytes);
  }
  if (8 + header > start.size() && start.size() < file.size) {
    ASSIGN_OR_RETURN(start, hub_.fetch_start(connection_, repository_, file.name, 8 + header));
  }
  return write_start(folder_ + "/" + file.name, start, file.size);
}

Status SkeletonFetch::fetch_gguf(const RemoteFile& file) {
  const std::string path = folder_ + "/" + file.name;
  Status status = ok_status();
  for (const uint64_t count : kGgufSteps) {
    ASSIGN_OR_RETURN(const std::string start, hub_.fetch_start(connection_, repository_, file.name, count));
    RETURN_IF_ERROR(write_start(path, start, file.size));
    ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(path));
    status = parse_gguf(mapped.bytes(), repository_.name + "/" + file.name).status();
    if (status.ok() || status.code() == StatusCode::kUnsupported || start.size() >= file.size) break;
  }
  return status;
}

Status SkeletonFetch::fetch_shards() {
  const std::string path = folder_ + "/" + std::string(kSafetensorsIndex);
  ASSIGN_OR_RETURN(const Json index, read_json_file(path, kMaxIndexFileBytes));
  ASSIGN_OR_RETURN(const std::set<std::string> shards, shard_names(index, repository_.name));
  for (const std::string& shard : shards) {
    const RemoteFile* file = repository_.find(shard);
    if (file == nullptr) {
      return error(StatusCode::kNotFound, "{}: its index names {}, which is not in it", repository_.name, shard);
    }
    RETURN_IF_ERROR(fetch(*file));
  }
  return ok_status();
}

}  // namespace

Result<Skeleton> fetch_skeleton(const HubSettings& settings, const ModelReference& reference,
                                const std::string& revision, const std::string& folder,
                                const TransferControl& control) {
  const Hub hub(settings, {}, control);
  ASSIGN_OR_RETURN(Connection connection, hub.connect());
  ASSIGN_OR_RETURN(Repository listed, hub.fetch_repository(connection, reference.repository, revision));
  std::vector<std::string> names;
  for (const RemoteFile& file : listed.files) names.push_back(file.name);
  ASSIGN_OR_RETURN(const Selection selection, select_files(names, reference.quant, reference.repository));
  Skeleton out{.reference = reference, .commit = listed.commit, .path = folder};
  SkeletonFetch fetch(hub, std::move(connection), std::move(listed), folder);
  for (const std::string& file : selection.files) RETURN_IF_ERROR(fetch.fetch(*fetch.repository().find(file)));
  if (selection.shards_by_index) RETURN_IF_ERROR(fetch.fetch_shards());
  if (selection.gguf) {
    out.reference.quant = selection.gguf->name;
    out.path += "/" + selection.gguf->files[0];
  }
  out.files = fetch.take_files();
  return out;
}

}  // namespace millrace::hub
