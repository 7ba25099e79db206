#include "hub/cached_models.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "hub/file_lock.h"
#include "hub/selection.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;

// The names in a folder, sorted.
std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (out.size() == kMaxCacheEntries) break;
    out.push_back(entry->path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::time_t modified_at(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mtime : 0;
}

// Of the files whose names end so.
uint64_t bytes_below(const std::string& folder, std::string_view suffix = "") {
  uint64_t bytes = 0;
  for (const std::string& name : entries_of(folder)) {
    if (!name.ends_with(suffix)) continue;
    std::error_code failed;
    const uint64_t size = fs::file_size(folder + "/" + name, failed);
    if (!failed) bytes += size;
  }
  return bytes;
}

std::vector<std::string> revisions_of(const Cache& cache, const std::string& repository, const std::string& commit) {
  std::vector<std::string> out;
  for (const std::string& name : snapshot_files(cache.folder(repository) + "/refs")) {
    if (cached_commit(cache, repository, name) == commit) out.push_back(name);
  }
  return out;
}

// A snapshot may be a folder of safetensors, GGUF models, or both.
void add_snapshot(const Cache& cache, const std::string& repository, const std::string& commit,
                  std::vector<ListedModel>& out) {
  const std::string snapshot = cache.snapshot(repository, commit);
  std::vector<ModelReference> references = {{repository, ""}};
  const std::vector<GgufChoice> choices = gguf_choices(snapshot_files(snapshot));
  for (const GgufChoice& choice : choices) references.push_back({repository, choice.name});
  for (const ModelReference& reference : references) {
    auto found = cached_model(cache, reference, commit);
    if (!found.ok() || !*found || (*found)->reference.quant != reference.quant)
      continue;  // or it has a name of its own
    out.push_back({std::move(**found), revisions_of(cache, repository, commit), modified_at(snapshot), true});
  }
}

struct BlobUse {
  std::string link, blob;
};

// Links of a repository's snapshots and the blobs that they lead to.
std::vector<BlobUse> blob_uses(const Cache& cache, const std::string& repository) {
  std::vector<BlobUse> out;
  const std::string folder = cache.folder(repository) + "/snapshots/";
  for (const std::string& commit : entries_of(folder)) {
    for (const std::string& file : snapshot_files(folder + commit)) {
      const std::string link = folder + commit + "/" + file;
      std::error_code failed;
      const fs::path blob = fs::canonical(link, failed);
      if (!failed) out.push_back({link, blob.string()});
    }
  }
  return out;
}

Status check_unused(const Cache& cache, const std::string& repository) {
  const std::string locks = cache.locks(repository);
  for (const std::string& name : entries_of(locks)) {
    if (name == kRepositoryLock) continue;  // this process has it
    ASSIGN_OR_RETURN(const auto lock, FileLock::try_take(locks + "/" + name, false));
    if (!lock) return error(StatusCode::kConflict, "{}: it is being pulled; wanted that to end", repository);
  }
  return ok_status();
}

// The files of a GGUF model, of each revision.
Result<std::set<std::string>> links_of(const Cache& cache, const ModelReference& reference) {
  std::set<std::string> links;
  for (const std::string& commit : entries_of(cache.folder(reference.repository) + "/snapshots")) {
    const std::string snapshot = cache.snapshot(reference.repository, commit);
    const auto choices = gguf_choices(snapshot_files(snapshot));
    if (choices.empty()) continue;
    const auto choice = choose_gguf(choices, reference.quant, reference.repository + " in the cache");
    if (!choice.ok() && choice.status().code() == StatusCode::kNotFound) continue;
    RETURN_IF_ERROR(choice.status());
    for (const std::string& file : choice->files) links.insert(snapshot + "/" + file);
  }
  return links;
}

// The files of one GGUF model; blobs that other links lead to stay.
Removed remove_files(const Cache& cache, const ModelReference& reference, const std::set<std::string>& links) {
  Removed out{.models = {reference.text()}};
  std::set<std::string> kept, gone;
  for (const BlobUse& use : blob_uses(cache, reference.repository)) {
    (links.contains(use.link) ? gone : kept).insert(use.blob);
  }
  std::error_code failed;
  for (const std::string& link : links) fs::remove(link, failed);
  for (const std::string& blob : gone) {
    if (kept.contains(blob)) continue;
    const uint64_t size = fs::file_size(blob, failed);
    if (fs::remove(blob, failed)) out.bytes += size;
  }
  return out;
}

Result<Removed> remove_repository(const Cache& cache, const std::string& repository) {
  Removed out;
  for (const ListedModel& one : list_models(cache)) {
    if (one.model.reference.repository == repository) out.models.push_back(one.model.reference.text());
  }
  if (out.models.empty()) out.models.push_back(repository);
  const std::string folder = cache.folder(repository);
  out.bytes = bytes_below(folder + "/blobs");
  std::error_code failed;
  fs::remove_all(folder, failed);
  if (failed) return file_error(failed.value(), folder, "remove");
  fs::remove_all(cache.locks(repository), failed);
  return out;
}

}  // namespace

std::vector<ListedModel> list_models(const Cache& cache) {
  std::vector<ListedModel> out;
  for (const std::string& repository : cache.repositories()) {
    const std::size_t before = out.size();
    for (const std::string& commit : entries_of(cache.folder(repository) + "/snapshots")) {
      add_snapshot(cache, repository, commit, out);
    }
    const std::string blobs = cache.folder(repository) + "/blobs";
    const bool any = out.size() > before;
    const uint64_t bytes = bytes_below(blobs, any ? ".incomplete" : "");
    if (bytes == 0) continue;
    ListedModel rest{.modified = modified_at(blobs), .complete = false};
    rest.model.reference.repository = repository;
    rest.model.bytes = bytes;
    out.push_back(std::move(rest));
  }
  return out;
}

bool is_removed_with(const Cache& cache, const ModelReference& reference, const std::string& path) {
  std::error_code failed;
  const fs::path model = fs::canonical(path, failed);
  if (failed) return false;
  const fs::path folder = fs::canonical(cache.folder(reference.repository), failed);
  if (failed) return false;
  // A link of a snapshot leads to a blob of the same folder.
  const bool below = std::mismatch(folder.begin(), folder.end(), model.begin(), model.end()).first == folder.end();
  if (!below || reference.quant.empty()) return below;
  const auto links = links_of(cache, reference);
  return links.ok() && std::any_of(links->begin(), links->end(), [&](const std::string& link) {
           std::error_code none;
           return fs::canonical(link, none) == model;
         });
}

Result<Removed> remove_model(const Cache& cache, const ModelReference& reference) {
  const std::string& repository = reference.repository;
  const auto missing = [&] {
    return error(StatusCode::kNotFound, "{} is not in {}; `millrace list` shows what is", reference.text(),
                 cache.root());
  };
  std::error_code failed;
  if (!fs::is_directory(cache.folder(repository), failed)) return missing();
  ASSIGN_OR_RETURN(const auto lock,
                   FileLock::try_take(cache.locks(repository) + "/" + std::string(kRepositoryLock), false));
  if (!lock) return error(StatusCode::kConflict, "{}: it is being pulled; wanted that to end", repository);
  if (reference.quant.empty()) {
    RETURN_IF_ERROR(check_unused(cache, repository));
    return remove_repository(cache, repository);
  }
  ASSIGN_OR_RETURN(const std::set<std::string> links, links_of(cache, reference));
  if (links.empty()) return missing();
  return remove_files(cache, reference, links);
}

}  // namespace millrace::hub
