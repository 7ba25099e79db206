#include "hub/pull.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/json.h"
#include "formats/json_file.h"
#include "formats/shard_names.h"
#include "formats/weights.h"
#include "hub/blob_download.h"
#include "hub/file_lock.h"
#include "hub/selection.h"

namespace millrace::hub {
namespace {

uint64_t size_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
}

std::vector<std::string> names_of(const Repository& repository) {
  std::vector<std::string> out;
  for (const RemoteFile& file : repository.files) out.push_back(file.name);
  return out;
}

Result<std::set<std::string>> read_shard_index(const std::string& path) {
  ASSIGN_OR_RETURN(const Json index, read_json_file(path, kMaxIndexFileBytes));
  return shard_names(index, path);
}

// One pull, from the listing to the ref.
class Pull {
 public:
  Pull(const HubSettings& settings, const PullOptions& options, const PullControl& control)
      : options_(options),
        control_(control),
        name_(options.model.repository),
        cache_(settings.cache),
        hub_(settings, options.retry,
             // One thread's failure ends the downloads of the others, which are of no use without it.
             {.cancelled = [this] { return failed_.load() || control_.transfer.cancelled(); },
              .note = control.transfer.note}) {}

  Result<CachedModel> run();

 private:
  Status choose(Connection& connection);
  Status add_file(Connection& connection, const std::string& file);
  Status check_space() const;
  Status fetch(std::size_t first);
  void fetch_next(std::atomic<std::size_t>& next);
  Status link();
  void note_failure(const Status& status);
  void note_progress(std::size_t file, int64_t bytes, std::size_t files);

  const PullOptions& options_;
  const PullControl& control_;
  const std::string name_;
  const Cache cache_;
  const Hub hub_;
  Repository repository_;
  Selection selection_;
  std::vector<RemoteFile> files_;
  std::atomic<bool> failed_{false};  // one of the threads has failed; the others end

  std::mutex mutex_;  // guards what follows
  PullProgress progress_;
  std::vector<uint64_t> file_bytes_done_;  // of files_
  Status first_failure_ = ok_status();
};

// The first failure is the reason; those that follow are mostly "interrupted", by failed_.
void Pull::note_failure(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!failed_.exchange(true)) first_failure_ = status;
}

void Pull::note_progress(std::size_t file, int64_t bytes, std::size_t files) {
  if (bytes == 0 && files == 0) return;
  const std::lock_guard lock(mutex_);
  progress_.bytes_done += static_cast<uint64_t>(bytes);
  progress_.files_done += files;
  progress_.file = &files_[file];
  progress_.file_bytes_done = file_bytes_done_[file] += static_cast<uint64_t>(bytes);
  // Under the lock, so that lines of progress come in sequence and one at a time.
  control_.progress(progress_);
}

Status Pull::add_file(Connection& connection, const std::string& file) {
  const RemoteFile* listed = repository_.find(file);
  if (listed == nullptr) {
    return error(StatusCode::kNotFound, "{}: {} names {}, which is not in the repository", name_, kSafetensorsIndex,
                 file);
  }
  RemoteFile out = *listed;
  // A request of its own where the listing lacks the checksum.
  RETURN_IF_ERROR(hub_.complete(connection, repository_, out));
  files_.push_back(out);
  const std::lock_guard lock(mutex_);
  file_bytes_done_.push_back(0);
  progress_.bytes += out.size;
  progress_.files++;
  return ok_status();
}

Status Pull::choose(Connection& connection) {
  ASSIGN_OR_RETURN(repository_, hub_.fetch_repository(connection, name_, options_.revision));
  ASSIGN_OR_RETURN(selection_, select_files(names_of(repository_), options_.model.quant, name_));
  if (selection_.gguf && options_.model.quant.empty()) {
    control_.transfer.note(fmt::format("{}: taking {}", name_, selection_.gguf->name));
  }
  for (const std::string& file : selection_.files) RETURN_IF_ERROR(add_file(connection, file));
  return ok_status();
}

// For what is not there yet, before the first byte is asked for.
Status Pull::check_space() const {
  std::map<std::string, uint64_t> missing;  // by checksum: a blob may be two files
  for (const RemoteFile& file : files_) {
    const std::string blob = cache_.blob(name_, file.etag);
    // Where the sizes agree the blob is there (BlobDownload::is_complete). What lies in `.incomplete` need not come
    // again.
    if (size_of(blob) != file.size) missing[file.etag] = file.size - std::min(file.size, size_of(blob + ".incomplete"));
  }
  uint64_t needed = 0;
  for (const auto& [etag, bytes] : missing) needed += bytes;
  struct statvfs disk {};
  if (needed == 0 || ::statvfs(cache_.root().c_str(), &disk) != 0) return ok_status();
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (needed + kDiskReserveBytes <= free) return ok_status();
  return error(StatusCode::kResourceExhausted,
               "{}: {} bytes are to come, and {} are free in {}; wanted {} and {} to spare: free some, or set "
               "HF_HUB_CACHE to a folder of another disk",
               name_, needed, free, cache_.root(), needed, kDiskReserveBytes);
}

void Pull::fetch_next(std::atomic<std::size_t>& next) {
  // Of each thread: a handle of libcurl belongs to one thread, and keeps its connection from file to file.
  auto connection = hub_.connect();
  if (!connection.ok()) return note_failure(connection.status());
  for (std::size_t i = next++; i < files_.size() && !hub_.control().cancelled(); i = next++) {
    BlobDownload download(hub_, cache_, repository_, files_[i],
                          [this, i](int64_t bytes) { note_progress(i, bytes, 0); });
    if (const Status status = download.run(*connection); !status.ok()) return note_failure(status);
    note_progress(i, 0, 1);
  }
}

// files_[first ...], several at once.
Status Pull::fetch(std::size_t first) {
  RETURN_IF_ERROR(make_folders(cache_.folder(name_) + "/blobs"));
  std::atomic<std::size_t> next{first};
  const std::size_t threads = std::min(files_.size() - first, static_cast<std::size_t>(options_.parallel));
  {
    // Their destructors join: below this block no other thread touches this object.
    std::vector<std::jthread> running;
    for (std::size_t i = 0; i < threads; ++i) running.emplace_back([&] { fetch_next(next); });
  }
  const std::lock_guard lock(mutex_);
  // An interrupted pull, whatever its threads found while they ended.
  if (control_.transfer.cancelled()) return Status(StatusCode::kCancelled, "interrupted");
  return first_failure_;
}

Status Pull::link() {
  for (const RemoteFile& file : files_) {
    RETURN_IF_ERROR(link_file(cache_, name_, repository_.commit, file.name, file.etag));
  }
  return set_revision(cache_, name_, options_.revision, repository_.commit);
}

Result<CachedModel> Pull::run() {
  ASSIGN_OR_RETURN(Connection connection, hub_.connect());
  RETURN_IF_ERROR(choose(connection));
  RETURN_IF_ERROR(make_folders(cache_.root()));
  // Shared: pulls may go on beside each other, and only `rm` takes it alone, to remove no blob that is about to be
  // linked. It is held until the links are there. The blobs' locks come inside of it, one at a time in each thread, so
  // no two processes wait for each other in a circle.
  ASSIGN_OR_RETURN(const FileLock lock,
                   FileLock::wait(cache_.locks(name_) + "/" + std::string(kRepositoryLock), true,
                                  fmt::format("{}: another process removes it; waiting", name_), hub_.control()));
  RETURN_IF_ERROR(check_space());
  RETURN_IF_ERROR(fetch(0));
  // Two rounds: the names of the shards stand in the index, which the first one brings.
  if (selection_.shards_by_index) {
    const std::size_t small = files_.size();
    // Of files_, not of the listing, which may lack the checksum.
    const auto index = std::find_if(files_.begin(), files_.end(),
                                    [](const RemoteFile& file) { return file.name == kSafetensorsIndex; });
    CHECK(index != files_.end());  // select_files() takes it
    ASSIGN_OR_RETURN(const std::set<std::string> shards, read_shard_index(cache_.blob(name_, index->etag)));
    for (const std::string& shard : shards) RETURN_IF_ERROR(add_file(connection, shard));
    RETURN_IF_ERROR(check_space());
    RETURN_IF_ERROR(fetch(small));
  }
  // Last, when all blobs are there: a snapshot with links to missing blobs would look like a model to other tools. And
  // the ref comes behind the links.
  RETURN_IF_ERROR(link());
  CachedModel out{.reference = options_.model, .commit = repository_.commit, .bytes = progress_.bytes};
  const std::string snapshot = cache_.snapshot(name_, out.commit);
  for (const RemoteFile& file : files_) out.files.push_back(file.name);
  if (selection_.gguf) out.reference.quant = selection_.gguf->name;
  out.path = selection_.gguf ? snapshot + "/" + selection_.gguf->files[0] : snapshot;
  return out;
}

}  // namespace

Result<CachedModel> pull(const HubSettings& settings, const PullOptions& options, const PullControl& control) {
  if (settings.offline) {
    return error(StatusCode::kUnavailable, "{}: HF_HUB_OFFLINE is set, and it is not in {}; wanted it unset to pull",
                 options.model.text(), settings.cache);
  }
  RETURN_IF_ERROR(check_revision(options.revision));
  return Pull(settings, options, control).run();
}

Result<std::optional<CachedModel>> cached_model(const Cache& cache, const ModelReference& reference,
                                                const std::string& revision) {
  const std::optional<CachedModel> none;
  const std::optional<std::string> commit = cached_commit(cache, reference.repository, revision);
  if (!commit) return none;
  CachedModel out{.reference = reference, .commit = *commit, .path = cache.snapshot(reference.repository, *commit)};
  const std::string snapshot = out.path;
  const std::vector<std::string> names = snapshot_files(snapshot);
  auto selection = select_files(names, reference.quant, reference.repository + " in the cache");
  if (!selection.ok() && selection.status().code() == StatusCode::kNotFound) return none;
  RETURN_IF_ERROR(selection.status());
  out.files = selection->files;
  if (selection->gguf) {
    out.reference.quant = selection->gguf->name;
    out.path += "/" + selection->gguf->files[0];
  } else {
    // Other programs may have got the tokenizer alone.
    for (const char* needed : {"config.json", "tokenizer.json"}) {
      if (std::find(names.begin(), names.end(), needed) == names.end()) return none;
    }
  }
  if (selection->shards_by_index) {
    const auto shards = read_shard_index(snapshot + "/" + std::string(kSafetensorsIndex));
    if (!shards.ok() || !std::includes(names.begin(), names.end(), shards->begin(), shards->end())) return none;
    out.files.insert(out.files.end(), shards->begin(), shards->end());
  }
  for (const std::string& file : out.files) out.bytes += size_of(snapshot + "/" + file);
  return std::optional<CachedModel>(std::move(out));
}

}  // namespace millrace::hub
