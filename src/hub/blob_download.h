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

  // An error keeps what has arrived, whatever it is, but for a complete file with another checksum than the hub's
  // listing has: it is removed, and the message has both (kInvalidArgument). Of a file that was resumed, this, and a
  // range that does not fit, have it fetched once more from its beginning.
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
  uint64_t size_ = 0;     // of what is in the file
  uint64_t skipped_ = 0;  // bytes of the answer under way that are in the file already and have yet to come
  bool unfit_ = false;    // what is in the file is no beginning of what the hub has
  std::optional<Digest> digest_;
};

}  // namespace millrace::hub
