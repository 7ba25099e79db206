// Digest: the checksum under which a hub knows a file, over its bytes as they come: SHA-256 of a large file (git LFS),
// or the SHA-1 of a git blob of a small one, which begins with its size.
//
// Owner: its maker. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

struct evp_md_ctx_st;

namespace millrace::hub {

// Whether `etag` is one of the two: 64 or 40 hexadecimal digits in lower case. Anything else is no file's name either.
bool is_checksum(std::string_view etag);

class Digest {
 public:
  // Of the kind of `etag`, of a file of `size` bytes. CHECK: is_checksum(etag).
  static Result<Digest> make(std::string_view etag, uint64_t size);

  Status update(std::span<const std::byte> bytes);
  // In hexadecimal digits. Once, at the end.
  Result<std::string> finish();

 private:
  struct Deleter {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Deleter> context_;
};

}  // namespace millrace::hub
