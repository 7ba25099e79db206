// Cache: the folder in which models are kept, as the Hugging Face tools lay it out, so that both use one:
//
//   models--ORG--NAME/blobs/CHECKSUM               a file's bytes; CHECKSUM.incomplete while they arrive
//   models--ORG--NAME/snapshots/COMMIT/FILE        a relative link to its blob
//   models--ORG--NAME/refs/REVISION                the commit of a branch or tag
//   .locks/models--ORG--NAME/CHECKSUM.lock         held (flock) while that blob is written
//
// A pull links its files when all of them are there, and writes the ref behind that, so a ref of this program leads to
// a complete snapshot. `millrace.lock` beside the locks is shared by pulls of a repository, and `rm` takes it alone.
//
// Thread safety: const functions from any thread. Names have been checked: parse_reference(), check_file_name(),
// is_checksum().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::hub {

inline constexpr std::string_view kRepositoryLock = "millrace.lock";
inline constexpr std::size_t kMaxCacheEntries = 1u << 20;  // looked at, of one folder

class Cache {
 public:
  explicit Cache(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string folder(const std::string& repository) const;
  std::string locks(const std::string& repository) const;
  std::string blob(const std::string& repository, const std::string& etag) const;
  std::string snapshot(const std::string& repository, const std::string& commit) const;
  // The repositories of which there is a folder, sorted.
  std::vector<std::string> repositories() const;

 private:
  std::string root_;
};

// The commit that a revision means in the cache; nullopt: it is not there.
std::optional<std::string> cached_commit(const Cache& cache, const std::string& repository,
                                         const std::string& revision);
// The files of a snapshot whose bytes are there, by their paths in it, sorted.
std::vector<std::string> snapshot_files(const std::string& snapshot);

// Errors name the path and the reason.
Status make_folders(const std::string& folder);
Status link_file(const Cache& cache, const std::string& repository, const std::string& commit, const std::string& file,
                 const std::string& etag);
// `revision` leads to `commit` now; of a commit itself, nothing is written.
Status set_revision(const Cache& cache, const std::string& repository, const std::string& revision,
                    const std::string& commit);

// Of errno. kResourceExhausted: the disk is full.
Status file_error(int number, const std::string& path, std::string_view what);

}  // namespace millrace::hub
