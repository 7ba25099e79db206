// PageFolder: KV pages as files, which outlive the process. A file is one page. Its name is the digest of its tokens
// and of all tokens before it, which begins with what the pages are of: model, weights, page size, dtype, instruction
// set, extra key (SavedPrefixes). So several processes, and servers of several models, may share a folder.
//
// A file is written under another name and renamed, and nothing is synced: after a crash of the machine a file may be
// damaged. What is read is compared with what was asked for, and its checksum with its bytes; a file that is not right
// is removed.
//
//   bytes  0 "MRKVPAGE"   8 u32 version  12 u32 tokens  16 u64 bytes of the page  24 u64 XXH3 of all that follows
//         32 parent[32]  64 tokens, i32  then the page; little-endian
//
// Where the folder would hold more than its limit, the pages that were not used for longest are removed. Files with
// other names than those of pages are the user's: they are not counted, and never removed.
//
// Owner: PageIo. Thread safety: contains(), mark_used() and bytes() any thread; else one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/block_hash.h"

namespace millrace::kv_disk {

struct PageName {
  BlockDigest digest{}, parent{};  // of the tokens up to its end, and up to its begin
  std::vector<int32_t> tokens;
};

class PageFolder {
 public:
  // Made where it is missing, with mode 0700. kInvalidArgument: it is another user's, or others may write to it.
  static Result<std::unique_ptr<PageFolder>> open(std::string path, uint64_t max_bytes);

  bool contains(const BlockDigest& digest) const;
  // The same; it was used now.
  bool mark_used(const BlockDigest& digest) const;
  // kNotFound; kUnavailable: it was damaged, or could not be read.
  Status read(const PageName& name, std::span<std::byte> to);
  // A page that is there already is left as it is.
  Status write(const PageName& name, std::span<const std::byte> bytes);

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // of all pages, about
  const std::string& path() const { return path_; }

 private:
  PageFolder(std::string path, uint64_t max_bytes);
  std::string file_of(const BlockDigest& digest) const;
  void tidy();  // counts the pages, and removes the oldest above the limit

  const std::string path_;
  const uint64_t max_bytes_;
  std::atomic<uint64_t> bytes_{0};
  uint64_t writer_ = 0;   // random: this object among all that write to the folder
  uint64_t written_ = 0;  // files, by this object
};

}  // namespace millrace::kv_disk
