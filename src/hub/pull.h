// pull: gets a model from a hub into the cache: what it needs, several files at once, each checked. And cached_model:
// finds it there without a network.
//
// Thread safety: free functions that block; the control's functions are called from any thread of theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/reference.h"
#include "hub/repository.h"
#include "hub/retry.h"
#include "hub/settings.h"

namespace millrace::hub {

inline constexpr int kMaxParallelFiles = 16;
inline constexpr uint64_t kDiskReserveBytes = 64 << 20;  // that stay free on the disk of the cache

struct PullProgress {
  std::size_t files = 0;  // in all
  std::size_t files_done = 0;
  uint64_t bytes = 0;  // in all
  uint64_t bytes_done = 0;
  // The file that this is about.
  const RemoteFile* file = nullptr;
  uint64_t file_bytes_done = 0;
};

struct PullOptions {
  ModelReference model;
  std::string revision = "main";
  int parallel = 4;  // files at once
  RetryPolicy retry;
};

struct PullControl {
  TransferControl transfer;
  std::function<void(const PullProgress&)> progress = [](const PullProgress&) {};  // from one thread at a time
};

// A model in the cache.
struct CachedModel {
  ModelReference reference;  // with the quantization, of a GGUF repository
  std::string commit;
  std::string path;                // to serve: the snapshot's folder, or a GGUF file in it
  std::vector<std::string> files;  // of the snapshot, that are this model's
  uint64_t bytes = 0;              // of these
};

// kInvalidArgument, kNotFound, kUnauthenticated, kPermissionDenied: of the hub's answers; kUnavailable: the network;
// kResourceExhausted: the disk is full, or will be; kCancelled. What has arrived is kept.
Result<CachedModel> pull(const HubSettings& settings, const PullOptions& options, const PullControl& control);

// nullopt: it is not there, or not complete. kInvalidArgument: several quantizations are there and none is named.
Result<std::optional<CachedModel>> cached_model(const Cache& cache, const ModelReference& reference,
                                                const std::string& revision);

}  // namespace millrace::hub
