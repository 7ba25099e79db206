// A file of named runs of bytes, each with a checksum: what a PackedCache (models/packed_cache.h) keeps on disk.
//
// It is a safetensors file whose tensors are U8 of one dimension, and __metadata__ holds the rest:
//   format          kPackedFormat; a file without it is of another program
//   key             what the bytes were made with: layouts, quantization, names; another key is another cache
//   source          the files that they were made from, as they were then
//   run:NAME        "MADE_OF SUM" of the run NAME: what it was made of, in the writer's words, and its checksum in hex,
//                   which covers key, NAME and MADE_OF too
//
// Never a wrong byte: read_run() compares the checksum of what it read, all of it, so a header or data that a disk, a
// person or a crash has changed is an error. The sums are no signatures: a program that may write to the folder may
// choose the weights.
//
// Never half a file: write_packed_file() writes NAME.part, syncs it and renames it. Of several writers of one name, one
// writes (the others get kConflict); the lock on NAME.part goes with the process that holds it, and a part that a
// crash has left is taken over or removed by trim_packed_files().
//
// Thread safety: free functions, and const functions of an open file, from any thread; a pool serves one call at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/mapped_file.h"

namespace millrace {

inline constexpr std::string_view kPackedFormat = "millrace-packed-1";
inline constexpr std::string_view kPackedSuffix = ".packed";
inline constexpr std::size_t kMaxPackedFiles = 8;  // of one folder

// XXH3 of the sums of all MiB, which the pool's threads make: the same on every number of threads.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed, ThreadPool& pool);

class PackedFile {
 public:
  struct Run {
    std::string made_of;
    uint64_t sum = 0;
    uint64_t begin = 0;  // in the file
    uint64_t size_bytes = 0;
  };

  // Reads and checks the header. kNotFound; kInvalidArgument: malformed, cut off, of another program, or of another
  // key; errors of MappedFile::open.
  static Result<PackedFile> open(const std::string& path, const std::string& key);

  const std::string& path() const { return file_.path(); }
  const std::string& source() const { return source_; }
  const Run* find(std::string_view name) const;
  // All bytes of a run; `to` has its size (CHECK). kInvalidArgument: they are not those that were written; errors of
  // MappedFile::read.
  Status read_run(std::string_view name, const Run& run, std::span<std::byte> to, ThreadPool& pool) const;

 private:
  Status read_header(const std::string& key);

  MappedFile file_;
  std::string key_, source_;
  std::map<std::string, Run, std::less<>> runs_;
};

struct PackedRun {
  std::string name, made_of;  // made_of without spaces
  std::span<const std::byte> bytes;
};

// The checksum of a run in a file of this key.
uint64_t packed_run_sum(const std::string& key, const PackedRun& run, ThreadPool& pool);

// The file of these runs, in this order; the folder is made where it is not there. kConflict: another process is
// writing it, or its part has a name that a file of the user has; kResourceExhausted: no space; kPermissionDenied,
// kInternal. On an error there is no new file, and an old one stays.
Status write_packed_file(const std::string& path, const std::string& key, const std::string& source,
                         std::span<const PackedRun> runs, ThreadPool& pool, const ProgressFn& progress = {});

// Marks a file as used now, for trim_packed_files().
void mark_packed_file_used(const std::string& path);

// Removes cache files from `folder`: all but the `most` last used ones, and parts that no process writes. A cache file
// ends with kPackedSuffix (a part with kPackedSuffix.part) and begins with this format's header; other files stay.
// Returns the names of the removed files; one that cannot be removed stays.
std::vector<std::string> trim_packed_files(const std::string& folder, std::size_t most);

}  // namespace millrace
