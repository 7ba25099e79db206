// BlobDownload: one file of a hub becomes one blob of the cache. It goes on from what an earlier attempt left in
// CHECKSUM.incomplete, and the blob appears under its name when its size and checksum are right.
//
// Owner: a thread of a pull. Thread safety: one thread; `arrived` is called on it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/connection.h"
#include "hub/digest.h"
#include "hub/repository.h"

namespace millrace::hub {

inline constexpr uint64_t kProgressBytes = 1 << 20;  // an attempt that brought so many counts as progress

// Bytes that arrived, or that are there already; negative where they have to come again.
using Arrived = std::function<void(int64_t bytes)>;

class BlobDownload {
 public:
  BlobDownload(const Hub& hub, const Cache& cache, const Repository& repository, const RemoteFile& file,
               Arrived arrived);
  ~BlobDownload();
  BlobDownload(const BlobDownload&) = delete;
  BlobDownload& operator=(const BlobDownload&) = delete;

  // kCancelled keeps what has arrived, as do errors of the network and a full disk. kInvalidArgument: other bytes than
  // the hub's listing has; they are removed, and the message has both checksums. Of a file that was resumed, this is
  // found out by getting it once more from its beginning.
  Status run(Connection& connection);

 private:
  bool is_complete() const;
  Status open_incomplete();
  Status restart();
  Status fetch(Connection& connection);
  Attempt attempt(Connection& connection);
  Status on_head(const HubAnswer& answer);
  Status on_body(std::span<const std::byte> bytes);
  Status finish();

  const Hub& hub_;
  const Repository& repository_;
  const RemoteFile& file_;
  const Arrived arrived_;
  const std::string what_, blob_, incomplete_, lock_;
  int fd_ = -1;
  uint64_t size_ = 0;  // of what is in the file
  std::optional<Digest> digest_;
};

}  // namespace millrace::hub
