#include "hub/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/trimmed.h"
#include "formats/mapped_file.h"
#include "hub/reference.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "models--";
constexpr uint64_t kMaxRefBytes = 256;

std::string folder_name(const std::string& repository) {
  std::string name = repository;
  return std::string(kPrefix) + name.replace(name.find('/'), 1, "--");
}

// The first "--" parts owner and name: an owner's name has none. parse_reference() refuses whatever else lies there.
std::optional<std::string> repository_of(const std::string& folder) {
  if (!folder.starts_with(kPrefix)) return std::nullopt;
  std::string name = folder.substr(kPrefix.size());
  const std::size_t cut = name.find("--");
  if (cut == std::string::npos) return std::nullopt;
  name.replace(cut, 2, "/");
  return parse_reference(name).ok() ? std::optional<std::string>(name) : std::nullopt;
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// In the folder of `path`, so that rename(2) stays in one file system. Random, as the process number would not keep the
// threads of a router apart, nor containers that share a volume: each one's program may be process 1.
std::string temporary_name(const std::string& path) {
  std::random_device random;
  return fmt::format("{}.{:016x}.new", path, uint64_t{random()} << 32 | random());
}

}  // namespace

std::string Cache::folder(const std::string& repository) const { return root_ + "/" + folder_name(repository); }
std::string Cache::locks(const std::string& repository) const { return root_ + "/.locks/" + folder_name(repository); }
std::string Cache::blob(const std::string& repository, const std::string& etag) const {
  return folder(repository) + "/blobs/" + etag;
}
std::string Cache::snapshot(const std::string& repository, const std::string& commit) const {
  return folder(repository) + "/snapshots/" + commit;
}

std::vector<std::string> Cache::repositories() const {
  std::vector<std::string> out;
  std::error_code failed;
  std::size_t looked_at = 0;
  for (fs::directory_iterator entry(root_, failed), end; !failed && entry != end; entry.increment(failed)) {
    // The folder is shared, so its size is not ours to bound.
    if (++looked_at > kMaxCacheEntries) break;
    if (auto name = repository_of(entry->path().filename().string())) out.push_back(std::move(*name));
  }
  std::sort(out.begin(), out.end());
  return out;
}

// refs/REVISION has the commit that the branch had when it was last pulled, by whichever tool.
std::optional<std::string> cached_commit(const Cache& cache, const std::string& repository,
                                         const std::string& revision) {
  std::string commit = revision;
  if (!is_commit(revision)) {
    const auto text = read_small_file(cache.folder(repository) + "/refs/" + revision, kMaxRefBytes);
    if (!text.ok()) return std::nullopt;
    commit = trimmed(*text);
  }
  if (!is_commit(commit) || !is_folder(cache.snapshot(repository, commit))) return std::nullopt;
  return commit;
}

std::vector<std::string> snapshot_files(const std::string& snapshot) {
  std::vector<std::string> out;
  std::error_code failed;
  std::size_t looked_at = 0;
  for (fs::recursive_directory_iterator entry(snapshot, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (++looked_at > kMaxCacheEntries) break;
    std::error_code none;
    if (entry->is_regular_file(none)) out.push_back(entry->path().lexically_relative(snapshot).string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Status file_error(int number, const std::string& path, std::string_view what) {
  const StatusCode code = number == ENOSPC || number == EDQUOT                     ? StatusCode::kResourceExhausted
                          : number == ENOENT                                       ? StatusCode::kNotFound
                          : number == EACCES || number == EPERM || number == EROFS ? StatusCode::kPermissionDenied
                                                                                   : StatusCode::kInternal;
  return error(code, "{}: cannot {}: {}", path, what, std::strerror(number));
}

Status make_folders(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  return failed ? file_error(failed.value(), folder, "make the folder") : ok_status();
}

Status link_file(const Cache& cache, const std::string& repository, const std::string& commit, const std::string& file,
                 const std::string& etag) {
  const std::string path = cache.snapshot(repository, commit) + "/" + file;
  RETURN_IF_ERROR(make_folders(fs::path(path).parent_path().string()));
  // Relative, as the Hugging Face tools make it: the cache may be moved or mounted elsewhere.
  std::string target = "../../";  // of snapshots/COMMIT/
  for (const char c : file) target += c == '/' ? "../" : "";
  target += "blobs/" + etag;
  // A link that is there already leads to the same bytes, or to those of an older listing: it is replaced at once.
  const std::string fresh = temporary_name(path);
  if (::symlink(target.c_str(), fresh.c_str()) != 0) return file_error(errno, fresh, "make the link");
  // rename(2) replaces the old link in one step: a model that is being loaded always finds one of the two.
  if (::rename(fresh.c_str(), path.c_str()) == 0) return ok_status();
  const int number = errno;
  ::unlink(fresh.c_str());
  return file_error(number, path, "make the link");
}

Status set_revision(const Cache& cache, const std::string& repository, const std::string& revision,
                    const std::string& commit) {
  if (revision == commit) return ok_status();
  const std::string path = cache.folder(repository) + "/refs/" + revision;
  RETURN_IF_ERROR(make_folders(fs::path(path).parent_path().string()));
  const std::string fresh = temporary_name(path);
  // x: O_EXCL, so that no two writers share a file. e: O_CLOEXEC.
  std::FILE* file = std::fopen(fresh.c_str(), "wbxe");
  if (file == nullptr) return file_error(errno, fresh, "write");
  const bool written = std::fputs(commit.c_str(), file) >= 0;
  // Its errors count as those of fputs(): buffered bytes are written here.
  const bool closed = std::fclose(file) == 0;
  if (written && closed && ::rename(fresh.c_str(), path.c_str()) == 0) return ok_status();
  const int number = errno;
  ::unlink(fresh.c_str());
  return file_error(number, path, "write");
}

}  // namespace millrace::hub
